//! Systems whose tests need a real kubelet and a real runtime: from their example policies to the Job with which users
//! check them, shared GPUs, and a stack without NVIDIA's container toolkit.

use anyhow::{Context, Result, ensure};
use cluster::standin::Gpu;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

use crate::support::{DEFAULT_DRIVER, Fixture, GOOGLES_DRIVER, GPUS, HOSTNAME, PROBE_PODS, UNCHECKED, started, test};

/// The token in the URL of a driver.
const CANARY: &str = "canary-in-the-url";

/// A Job with which users check a system: it requests one GPU on nodes with a label.
struct Check<'a> {
    label: (&'a str, &'a str),
    /// The command. If empty, the image's own program runs, which is NVIDIA's sample.
    command: &'a [&'a str],
    /// The path of the driver's libraries in the container, if `LD_LIBRARY_PATH` must be set.
    libraries: Option<&'a str>,
}

impl Check<'_> {
    /// Runs the Job to its end, without privileges, and returns its log.
    async fn run(&self, f: &Fixture) -> Result<String> {
        let env: Vec<_> = self.libraries.iter().map(|path| json!({"name": "LD_LIBRARY_PATH", "value": path})).collect();
        let job = serde_json::from_value(json!({
            "metadata": {"name": "check"},
            "spec": {"backoffLimit": 0, "template": {"spec": {
                "restartPolicy": "Never",
                "nodeSelector": {self.label.0: self.label.1, HOSTNAME: f.host.name()},
                "containers": [{
                    "name": "check",
                    "image": "localhost:5999/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
                    "command": self.command,
                    "env": env,
                    "resources": {"limits": {keys::GPU_RESOURCE: "1"}},
                }],
            }}},
        }))?;
        Api::<Job>::namespaced(f.cluster.client(), &f.users()).create(&PostParams::default(), &job).await?;
        let completes =
            f.cluster.kubectl(&["wait", "--for=condition=Complete", "job/check", "-n", &f.users(), "--timeout=5m"]);
        let log = f.cluster.kubectl(&["logs", "job/check", "-n", &f.users()]);
        f.cluster.kubectl(&["delete", "job", "check", "-n", &f.users()])?;
        completes.with_context(|| format!("{log:?}"))?;
        log
    }
}

/// Runs NVIDIA's sample on a node with a label.
async fn vector_add_passes(f: &Fixture, label: (&str, &str)) -> Result<()> {
    let log = Check { label, command: &[], libraries: None }.run(f).await?;
    ensure!(log.contains("Test PASSED"), "{log}");
    Ok(())
}

/// Checks that nvidia-smi, which is part of the driver, shows exactly one GPU and the driver version.
pub async fn nvidia_smi_shows(f: &Fixture, label: (&str, &str), gpu: &str, driver: &str) -> Result<()> {
    shows_one(&Check { label, command: &["nvidia-smi"], libraries: None }.run(f).await?, gpu, driver)
}

fn shows_one(log: &str, gpu: &str, driver: &str) -> Result<()> {
    ensure!(log.contains(&format!("Driver Version: {driver}")), "{log}");
    let shown: Vec<_> = log.lines().filter(|line| line.starts_with("GPU ")).collect();
    ensure!(shown.len() == 1 && shown[0].contains(gpu), "{log}");
    Ok(())
}

#[test]
fn a_job_passes_with_the_kubeadm_example() {
    test(async |f| {
        f.apply_example("kubeadm").await?;
        f.wait_until_ready().await?;
        let label = (keys::MODEL, "nvidia-h100-80gb");
        vector_add_passes(&f, label).await?;
        nvidia_smi_shows(&f, label, "NVIDIA H100 80GB HBM3 81559MiB", DEFAULT_DRIVER).await?;
        // The columns that users list a cluster's GPUs with.
        let columns = "-o=custom-columns=NAME:.metadata.name,GPU:.status.allocatable.nvidia\\.com/gpu";
        let node = f.host.name();
        let table = f.cluster.kubectl(&["get", "node", &node, columns])?;
        let shown: Vec<_> = table.split_whitespace().collect();
        ensure!(shown == ["NAME", "GPU", &node, "8"], "{table}");
        Ok(())
    });
}

#[test]
fn a_job_passes_on_tesla_k80s_with_the_driver_of_an_old_host() {
    test(async |f| {
        const DRIVER: &str = "470.256.02";
        f.plug(&Gpu::several(4, "Tesla K80", 0x102d, 11_441)).await?;
        f.load_host_driver(DRIVER).await?;
        f.apply_example("legacy-k80").await?;
        f.wait_until_ready_with(keys::GPU_RESOURCE, 4).await?;
        ensure!(f.operands(Stage::Driver).await?.is_empty(), "a driver pod was created");
        ensure!(f.capacity().await? == 4, "{}", f.capacity().await?);
        // Without isolation all four would be visible.
        nvidia_smi_shows(&f, ("accelerator", "nvidia-tesla-k80"), "Tesla K80 11441MiB", DRIVER).await
    });
}

#[test]
fn a_job_passes_with_googles_installer_and_plugin_on_gke_ubuntu() {
    test(async |f| {
        f.host.set_install_dir(true)?;
        f.plug(&Gpu::several(GPUS, "Tesla T4", 0x1eb8, 15_360)).await?;
        f.apply_example("gke-ubuntu").await?;
        f.wait_until_ready().await?;
        ensure!(f.operands(Stage::Toolkit).await?.is_empty(), "a toolkit pod was created");
        let driver = f.operand(Stage::Driver).await?;
        ensure!(started(&driver).is_some(), "the installer's pod is not running after the installation");
        let args = ["logs", &driver.name_any(), "-c", "install-driver", "-n", f.cluster.namespace()];
        let log = f.cluster.kubectl(&args)?;
        ensure!(log.contains("Verifying Nvidia installation... DONE."), "{log}");
        // Google's plugin mounts the driver here, as on GKE.
        let label = (keys::MODEL, "nvidia-tesla-t4");
        let command = &["/usr/local/nvidia/bin/nvidia-smi"][..];
        let log = Check { label, command, libraries: Some("/usr/local/nvidia/lib64") }.run(&f).await?;
        shows_one(&log, "Tesla T4 15360MiB", GOOGLES_DRIVER)
    });
}

#[test]
fn a_job_selects_one_of_several_models_by_the_label_accelerator() {
    test(async |f| {
        f.plug(&Gpu::several(GPUS, "Tesla P100-PCIE-16GB", 0x15f8, 16_280)).await?;
        f.apply_example("mixed-models").await?;
        f.wait_until_ready().await?;
        let label = ("accelerator", "nvidia-tesla-p100");
        vector_add_passes(&f, label).await?;
        // This is the last branch that supports Pascal, not the newest branch.
        nvidia_smi_shows(&f, label, "Tesla P100-PCIE-16GB 16280MiB", "580.173.02").await
    });
}

#[test]
fn a_job_passes_with_a_run_file_and_a_custom_label() {
    test(async |f| {
        f.host.set_install_dir(true)?;
        f.plug(&Gpu::several(GPUS, "Quadro K620", 0x13bb, 2_000)).await?;
        let node = &f.host.name();
        f.cluster.kubectl(&["label", "node", node, "gpu/nividia=P630"])?;
        f.apply_example("bare-metal-run-file").await?;
        f.wait_until_ready().await?;
        let passed = vector_add_passes(&f, ("gpu/nividia", "P630")).await;
        // The label belongs to the user, so the operator would not remove it.
        f.cluster.kubectl(&["label", "node", node, "gpu/nividia-"])?;
        passed?;
        let status = f.status().await?;
        ensure!(status.model.as_deref() == Some("nvidia-quadro-k620"), "{:?}", status.model);
        Ok(())
    });
}

#[test]
fn a_change_of_sharing_replaces_only_the_plugin() {
    test(async |f| {
        // With a custom install folder, a pod that gets its GPU shows that the plugin finds the toolkit there.
        let policy = |sharing: &str| {
            format!(
                "{{defaults: {{toolkit: {{installDir: /opt/nvidia}}, devicePlugin: {{sharing: {{timeSlicing: {sharing}}}}}}}}}"
            )
        };
        f.apply(&policy("{replicas: 4}")).await?;
        f.wait_until_ready_with(keys::GPU_RESOURCE, 4 * GPUS).await?;
        let summary = f.status().await?.gpus.summary;
        ensure!(summary == format!("{0}/{0}", 4 * GPUS), "{summary}");
        let others = || async {
            let (driver, toolkit) = (f.operand(Stage::Driver).await?, f.operand(Stage::Toolkit).await?);
            anyhow::Ok((driver.uid(), toolkit.uid()))
        };
        let before = others().await?;
        f.run_gpu_pod("slice").await?;
        f.sees_one_gpu("slice")?;

        f.host.exec(&[
            "/bin/sh",
            "-ec",
            "test -x /opt/nvidia/toolkit/nvidia-cdi-hook && ! test -e /usr/local/nvidia/toolkit",
        ])?;

        f.apply(&policy("{replicas: 2, renameByDefault: true}")).await?;
        f.wait_until_ready_with("nvidia.com/gpu.shared", 2 * GPUS).await?;
        ensure!(others().await? == before, "the pod of driver or toolkit was recreated");
        Ok(())
    });
}

#[test]
fn a_run_file_and_googles_plugin_need_no_toolkit() {
    test(async |f| {
        f.host.set_install_dir(true)?;
        let image = "image: {repository: localhost:5999/google/stand-in, tag: dev}";
        let url = format!("https://mirror.example.com/a.run?token={CANARY}");
        f.apply(&format!(
            "{{pools: [{{
                name: ceph-workers,
                nodeLabels: [{{key: gpu/nividia, value: P630}}],
                driver: {{source: RunFile, version: 580.173.02, runFile: {{url: '{url}', sha256: {UNCHECKED}}}, {image}}},
                devicePlugin: {{flavor: Google, google: {{metricsPort: 2112}}, {image}}},
            }}]}}"
        ))
        .await?;
        f.wait_until_ready().await?;
        ensure!(f.operands(Stage::Toolkit).await?.is_empty(), "a toolkit pod was created");
        ensure!(f.node().await?.labels().get("gpu/nividia").is_some_and(|value| value == "P630"));
        f.run_gpu_pod("vectoradd").await?;
        f.sees_one_gpu("vectoradd")?;

        // A new installer pod finds the installed driver, and no GPU becomes unavailable.
        let plugin = f.operand(Stage::DevicePlugin).await?;
        let driver = f.remake(Stage::Driver).await?;
        let args = ["logs", &driver.name_any(), "-c", "install-driver", "-n", f.cluster.namespace()];
        let log = f.cluster.kubectl(&args)?;
        ensure!(log.contains("Found cached version"), "{log}");
        ensure!(f.operand(Stage::DevicePlugin).await?.uid() == plugin.uid());
        ensure!(f.allocatable().await? == GPUS);
        shows_no_credential(&f, &driver.name_any()).await
    });
}

/// Checks that the token of the driver's URL is neither in a status, nor in Events, nor in logs. The probe pods of other nodes belong to other
/// tests, which may be deleting them.
async fn shows_no_credential(f: &Fixture, driver: &str) -> Result<()> {
    let (node, namespace) = (&f.host.name(), f.cluster.namespace());
    let status = "-o=jsonpath={.status}";
    let probes: Vec<String> = f.pods_here(PROBE_PODS).await?.iter().map(ResourceExt::name_any).collect();
    ensure!(!probes.is_empty());
    let probe_logs = probes.iter().map(|probe| vec!["logs", probe, "-n", namespace, "--tail=-1"]);
    let others = [
        vec!["get", "clustergpupolicy", &f.policy, status],
        vec!["get", "gpunode", node, "-o=yaml"],
        vec!["get", "node", node, "-o=yaml"],
        vec!["get", "events", "-A", "-o=yaml"],
        vec!["logs", driver, "-n", namespace, "--all-containers"],
        vec!["logs", "deployment/nodestack-gpu-operator", "-n", namespace],
    ];
    for args in probe_logs.chain(others) {
        let shown = f.cluster.kubectl(&args)?;
        ensure!(!shown.is_empty() && !shown.contains(CANARY), "{args:?} shows the token of driver.runFile.url");
    }
    Ok(())
}
