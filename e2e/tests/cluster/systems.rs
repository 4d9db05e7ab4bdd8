//! What systems ask for that need a real kubelet and a real runtime to be believed: from their examples to the Job by which
//! their users check, GPUs shared, and a stack without NVIDIA's container toolkit.

use anyhow::{Result, ensure};
use e2e::Gpu;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::batch::v1::Job;
use kube::{Api, ResourceExt, api::PostParams};
use serde_json::json;

use crate::support::{Fixture, GPUS, test};

/// The check that users make: a Job of NVIDIA's sample that asks for one GPU where a label is, and its log.
async fn job_passes(f: &Fixture, label: &str, value: &str) -> Result<()> {
    let job = serde_json::from_value(json!({
        "metadata": {"name": "vectoradd"},
        "spec": {"template": {"spec": {
            "restartPolicy": "OnFailure",
            "nodeSelector": {label: value},
            "containers": [{
                "name": "vectoradd",
                "image": "localhost:5999/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0",
                "resources": {"limits": {keys::GPU_RESOURCE: "1"}},
            }],
        }}},
    }))?;
    Api::<Job>::namespaced(f.cluster.client(), "default").create(&PostParams::default(), &job).await?;
    f.cluster.kubectl(&["wait", "--for=condition=Complete", "job/vectoradd", "--timeout=60s"])?;
    let log = f.cluster.kubectl(&["logs", "job/vectoradd"])?;
    f.cluster.kubectl(&["delete", "job", "vectoradd"])?;
    ensure!(log.contains("Test PASSED"), "{log}");
    Ok(())
}

#[test]
fn kubeadms_example_ends_in_a_job_that_passes() {
    test(|f| async move {
        f.apply_example("kubeadm").await?;
        f.wait_until_ready().await?;
        job_passes(&f, keys::MODEL, "nvidia-h100-80gb").await
    });
}

#[test]
fn bare_metal_with_a_run_file_and_a_label_of_ones_own_ends_in_a_job_that_passes() {
    test(|f| async move {
        f.cluster.set_install_dir(true)?;
        f.cluster.standin().plug(&Gpu::several(GPUS, "Quadro K620", 0x13bb, 2_000))?;
        let node = f.cluster.node_name();
        f.cluster.kubectl(&["label", "node", node, "gpu/nividia=P630"])?;
        f.apply_example("bare-metal-run-file").await?;
        f.wait_until_ready().await?;
        let passed = job_passes(&f, "gpu/nividia", "P630").await;
        // It is the user's, and so outlives the policy.
        f.cluster.kubectl(&["label", "node", node, "gpu/nividia-"])?;
        passed?;
        let status = f.status().await?;
        ensure!(status.model.as_deref() == Some("nvidia-quadro-k620"), "{:?}", status.model);
        Ok(())
    });
}

#[test]
fn a_gpu_is_shared_by_as_many_pods_as_the_policy_says_and_only_the_plugin_moves() {
    test(|f| async move {
        // In a folder of its own: what containers are given then proves that the plugin finds the toolkit there.
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

        f.cluster.node_exec(&[
            "/bin/sh",
            "-ec",
            "test -x /opt/nvidia/toolkit/nvidia-cdi-hook && ! test -e /usr/local/nvidia/toolkit",
        ])?;

        f.apply(&policy("{replicas: 2, renameByDefault: true}")).await?;
        f.wait_until_ready_with("nvidia.com/gpu.shared", 2 * GPUS).await?;
        ensure!(others().await? == before, "driver and toolkit have nothing to do with it");
        Ok(())
    });
}

#[test]
fn a_run_file_and_googles_plugin_need_no_toolkit() {
    test(|f| async move {
        f.cluster.set_install_dir(true)?;
        let image = "image: {repository: localhost:5999/google/stand-in, tag: dev}";
        f.apply(&format!(
            "{{pools: [{{
                name: ceph-workers,
                nodeLabels: [{{key: gpu/nividia, value: P630}}],
                driver: {{source: RunFile, version: 580.173.02, {image}}},
                devicePlugin: {{flavor: Gke, containerMetrics: {{port: 2112}}, {image}}},
            }}]}}"
        ))
        .await?;
        f.wait_until_ready().await?;
        ensure!(f.operands(Stage::Toolkit).await?.is_empty(), "no toolkit is needed");
        ensure!(f.node().await?.labels().get("gpu/nividia").is_some_and(|value| value == "P630"));
        let message = f.status().await?.message;
        ensure!(message.contains("gpu/nividia=P630") && message.contains("nvidia-h100-80gb"), "{message}");

        f.run_gpu_pod("vectoradd").await?;
        f.sees_one_gpu("vectoradd")?;

        // What is on the host already is found there, and nobody's GPU is taken away for it.
        let plugin = f.operand(Stage::DevicePlugin).await?;
        let driver = f.remake(Stage::Driver).await?;
        let args = ["logs", &driver.name_any(), "-c", "install-driver", "-n", f.cluster.namespace()];
        let log = f.cluster.kubectl(&args)?;
        ensure!(log.contains("Found cached version"), "{log}");
        ensure!(f.operand(Stage::DevicePlugin).await?.uid() == plugin.uid());
        ensure!(f.allocatable().await? == GPUS);
        Ok(())
    });
}
