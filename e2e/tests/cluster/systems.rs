//! What systems ask for that need a real kubelet and a real runtime to be believed: GPUs shared, and a stack without
//! NVIDIA's container toolkit.

use anyhow::{Context, ensure};
use e2e::eventually;
use gpu_operator_crd::{keys, policy::Stage};
use kube::ResourceExt;

use crate::support::{GPUS, READY, test};

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
        let devices = f.gpu_devices_of("slice")?;
        let gpus = devices.iter().filter(|device| device.trim_start_matches("nvidia").parse::<u32>().is_ok()).count();
        ensure!(gpus == 1, "a slice is of one GPU: {devices:?}");

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
        let devices = f.gpu_devices_of("vectoradd")?;
        let gpus = devices.iter().filter(|device| device.trim_start_matches("nvidia").parse::<u32>().is_ok()).count();
        ensure!(gpus == 1 && devices.contains(&"nvidiactl".to_owned()), "{devices:?}");

        // What is on the host already is found there, and nobody's GPU is taken away for it.
        let (driver, plugin) = (f.operand(Stage::Driver).await?, f.operand(Stage::DevicePlugin).await?);
        f.cluster.kubectl(&["delete", "pod", &driver.name_any(), "-n", f.cluster.namespace()])?;
        eventually(READY, "another driver pod that is done", || async {
            let pod = f.operand(Stage::Driver).await?;
            ensure!(pod.uid() != driver.uid(), "it is the old one");
            let args = ["logs", &pod.name_any(), "-c", "install-driver", "-n", f.cluster.namespace()];
            let log = f.cluster.kubectl(&args)?;
            ensure!(log.contains("Found cached version"), "{log}");
            let phase = pod.status.and_then(|status| status.phase).context("no phase")?;
            ensure!(phase == "Running", "{phase}");
            Ok(())
        })
        .await?;
        ensure!(f.operand(Stage::DevicePlugin).await?.uid() == plugin.uid());
        ensure!(f.allocatable().await? == GPUS);
        Ok(())
    });
}
