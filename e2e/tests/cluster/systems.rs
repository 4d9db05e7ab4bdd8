//! What systems ask for that need a real kubelet and a real runtime to be believed: GPUs shared, and a stack without
//! NVIDIA's container toolkit.

use anyhow::ensure;
use gpu_operator_crd::{keys, policy::Stage};
use kube::ResourceExt;

use crate::support::{GPUS, test};

#[test]
fn a_gpu_is_shared_by_as_many_pods_as_the_policy_says_and_only_the_plugin_moves() {
    test(|f| async move {
        f.apply("{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 4}}}}}").await?;
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

        f.apply("{defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 2, renameByDefault: true}}}}}").await?;
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
