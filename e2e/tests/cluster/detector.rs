//! Detector and probe follow the GPUs of a node: the first one, the last one, and those that are given to virtual machines.

use anyhow::{Context, Result, bail, ensure};
use cluster::{standin::Gpu, users::DETECTOR};
use gpu_operator_crd::GpuNode;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::json;

use crate::support::{Fixture, GPUS, PROBE_PODS, test};

/// The label of the detector's pods.
const DETECTORS: &str = "app.kubernetes.io/name=gpu-detector";

/// Returns UID and restarts of each pod.
fn lives(pods: &[Pod]) -> Vec<(String, i32)> {
    let restarts = |pod: &Pod| {
        let containers = pod.status.iter().flat_map(|status| status.container_statuses.iter().flatten());
        containers.map(|container| container.restart_count).sum()
    };
    pods.iter().map(|pod| (pod.uid().unwrap_or_default(), restarts(pod))).collect()
}

/// Waits until the node's probe reports this number of GPUs, beside this number of GPUs for virtual machines.
async fn reported(f: &Fixture, gpus: usize, passed_through: u32) -> Result<()> {
    f.wait_for_status(&format!("a report of {gpus} GPUs"), |status| {
        let report = status.report.as_ref().context("no report")?;
        ensure!(report.gpus.len() == gpus && report.passed_through == passed_through, "{report:?}");
        Ok(())
    })
    .await
}

#[test]
fn detector_and_probe_follow_the_gpus() {
    test(async |f| {
        let standin = f.host.standin();
        let gpus = Gpu::h100(GPUS);
        let last = &gpus.last().context("a GPU")?.pci_address;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("user").await?;
        let user = ListParams::default();
        let users = || async { Ok::<_, anyhow::Error>(lives(&f.pods(&f.users()).list(&user).await?.items)) };
        let before = (lives(&f.pods_here(DETECTORS).await?), lives(&f.pods_here(PROBE_PODS).await?), users().await?);
        ensure!(before.0.len() == 1 && before.1.len() == 1, "{before:?}");

        // One GPU of several is given to a virtual machine, and comes back.
        standin.bind(last, Some("vfio-pci"))?;
        reported(&f, 7, 1).await?;
        standin.bind(last, None)?;
        reported(&f, 8, 0).await?;
        let after = (lives(&f.pods_here(DETECTORS).await?), lives(&f.pods_here(PROBE_PODS).await?), users().await?);
        ensure!(before == after, "{before:?} {after:?}");

        // All GPUs are removed. With the GpuNode, an administrator deletes the memory of the GPUs that the node had under the policy: without
        // that they would be missing, and the probe would stay.
        f.cluster.kubectl(&["delete", "pods", "--all", "-n", &f.users(), "--grace-period=1"])?;
        f.cluster.kubectl(&["delete", "clustergpupolicy", &f.policy, "--timeout=120s"])?;
        let mark = f.cluster.audit().mark()?;
        standin.plug(&[])?;
        f.cluster.kubectl(&["delete", "gpunode", &f.host.name(), "--ignore-not-found"])?;
        f.wait_until_forgotten().await?;
        ensure!(lives(&f.pods_here(DETECTORS).await?) == before.0, "the detector was restarted");

        // The first GPU of a node, without a policy and without a reboot.
        standin.plug(&gpus[..1])?;
        reported(&f, 1, 0).await?;
        let requests = f.cluster.audit().requests(DETECTOR, mark)?;
        let of_node = requests.by_name().get(&f.host.name()).copied().unwrap_or_default();
        ensure!(of_node <= 3, "{requests}");

        // The only GPU is given to a virtual machine, and comes back.
        standin.bind(&gpus[0].pci_address, Some("vfio-pci"))?;
        f.wait_until_forgotten().await?;
        standin.bind(&gpus[0].pci_address, None)?;
        reported(&f, 1, 0).await?;
        ensure!(lives(&f.pods_here(DETECTORS).await?) == before.0, "the detector was restarted");
        f.plug(&gpus).await
    });
}

/// Returns a client with the token of the detector's own pod.
async fn detector(f: &Fixture) -> Result<Client> {
    let pod = f.pods_here(DETECTORS).await?.first().context("no pod of the detector")?.name_any();
    let file = f.cluster.service_account_kubeconfig("nodestack-gpu-detector", Some(&pod))?;
    let config = Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

/// Asserts that a request was denied by role or policy.
fn denied<T: std::fmt::Debug>(what: &str, outcome: Result<T, kube::Error>, words: &str) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_forbidden() && status.message.contains(words) => Ok(()),
        other => bail!("{what}: expected a denial with {words:?}, got {other:?}"),
    }
}

#[test]
fn the_detector_can_only_create_the_gpunode_of_its_node() {
    test(async |f| {
        let own = &f.host.name();
        let api = Api::<GpuNode>::all(detector(&f).await?);
        let gpu_node = |name: &str, spec: serde_json::Value| -> Result<GpuNode> {
            Ok(serde_json::from_value(json!({
                "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": spec,
            }))?)
        };
        let create = PostParams { dry_run: true, ..PostParams::default() };
        denied("another's", api.create(&create, &gpu_node("other", json!({}))?).await, "of that name only")?;
        let taken = gpu_node(own, json!({"policy": "mine"}))?;
        denied("a spec", api.create(&create, &taken).await, "only the operator may write the spec")?;
        denied("read", api.get(own).await, "cannot get")?;
        denied("list", api.list(&ListParams::default()).await, "cannot list")?;
        denied("delete", api.delete(own, &DeleteParams::default()).await, "cannot delete")?;
        let report = json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "status": {"report": {"bootID": "x"}},
        });
        let apply = PatchParams::apply("gpu-detector").force();
        denied("a report", api.patch_status(own, &apply, &Patch::Apply(report)).await, "cannot patch")?;
        match api.create(&create, &gpu_node(own, json!({}))?).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(()),
            other => bail!("its own GpuNode, which exists: {other:?}"),
        }
    });
}
