//! A new revision on a real node: the driver is replaced only when no operand and no GPU pod uses it.

use anyhow::ensure;
use gpu_operator_crd::{Phase, gpunode::ValidationResult, policy::Stage, reason::Reason};
use harness::wait::eventually;

use crate::support::{DEFAULT_DRIVER, PLAIN_STAGES, READY, started, test};

const OTHER: &str = "590.10.01";
/// A file that stands for a device file: the nodes' device files cannot be opened without their driver.
const HELD: &str = "/dev/nvidia-held";
/// Starts a process of the host that has that file open, and prints its PID.
const HOLD: &str = ": >/dev/nvidia-held; setsid sleep 600 </dev/nvidia-held >/dev/null 2>&1 & echo $!";

#[test]
fn a_changed_driver_waits_for_gpu_pods_and_other_programs() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("training").await?;
        f.apply(&format!("{{defaults: {{driver: {{version: {OTHER}}}}}}}")).await?;
        f.wait_for_reason(Reason::GpuPodsInUse).await?;
        let status = f.status().await?;
        ensure!(status.phase == Phase::Ready && status.waits_on == [format!("{}/training", f.users())], "{status:?}");
        ensure!(
            f.host.standin().loaded_driver().as_deref() == Some(DEFAULT_DRIVER),
            "the driver was replaced while a pod used it"
        );
        let pid = f.host.exec(&["/bin/sh", "-ec", HOLD])?;
        f.cluster.kubectl(&["delete", "pod", "training", "-n", &f.users()])?;
        f.wait_for_reason(Reason::GpusHeld).await?;
        let status = f.status().await?;
        let holder = format!("process sleep (PID {}) of the host", pid.trim());
        ensure!(status.phase == Phase::Ready && status.waits_on == [holder], "{status:?}");
        ensure!(status.gpus.allocatable > 0, "the node has lost its GPUs: {status:?}");
        f.host.exec(&["/bin/sh", "-ec", &format!("kill {}; rm {HELD}", pid.trim())])?;
        eventually(READY, "the other driver", || async {
            let loaded = f.host.standin().loaded_driver();
            ensure!(loaded.as_deref() == Some(OTHER), "{loaded:?}, {:?}", f.status().await?.message);
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        eventually(READY, "the end of the rollout", || async {
            let of_policy = ["-n", f.cluster.namespace(), "-l", &f.of_policy(), "-o", "name"];
            let sets = f.cluster.kubectl(&[&["get", "daemonsets"], &of_policy[..]].concat())?;
            ensure!(sets.lines().count() == PLAIN_STAGES.len(), "old revisions are left: {sets}");
            Ok(())
        })
        .await?;
        f.run_gpu_pod("on-the-new-driver").await
    });
}

#[test]
fn cordon_and_drain_update_a_busy_node_and_keep_other_pods() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let mut bystander = f.gpu_pod("bystander", &["/usr/bin/entrypoint", "hold"]);
        bystander["spec"]["containers"][0]["resources"].take();
        f.create(bystander).await?;
        let before = f.runs("bystander").await?;
        f.run_gpu_pod("training").await?;
        f.apply(&format!(
            "{{readiness: {{validation: {{mode: OnUpgrade}}}}, defaults: {{driver: {{version: {OTHER}}}}}}}"
        ))
        .await?;
        f.wait_for_reason(Reason::GpuPodsInUse).await?;

        let node = f.host.name();
        f.cluster.kubectl(&["cordon", &node])?;
        f.cluster.kubectl(&["delete", "pod", "training", "-n", &f.users()])?;
        // The pod of the validation is scheduled although the node is cordoned.
        f.wait_for_status("the other driver and a validated node", |status| {
            let loaded = status.report.as_ref().and_then(|report| report.driver.loaded.as_deref());
            let validation = status.validation.as_ref().map(|validation| validation.result);
            ensure!(loaded == Some(OTHER) && validation == Some(ValidationResult::Passed), "{loaded:?} {validation:?}");
            ensure!(status.phase == Phase::Ready, "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await?;
        let cordoned = f.node().await?.spec.and_then(|spec| spec.unschedulable);
        ensure!(cordoned == Some(true), "the node was uncordoned");
        f.cluster.kubectl(&["uncordon", &node])?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("on-the-new-driver").await?;
        let after = f.pods(&f.users()).get("bystander").await?;
        ensure!(after.metadata.uid == before.metadata.uid && started(&after) == started(&before), "{:?}", after.status);
        Ok(())
    });
}

#[test]
fn a_new_plugin_affects_neither_the_driver_nor_running_gpu_pods() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("training").await?;
        let driver = f.operand(Stage::Driver).await?.metadata.uid;
        let plugin = f.operand(Stage::DevicePlugin).await?.metadata.uid;
        f.apply("{defaults: {devicePlugin: {env: [{name: ANY, value: change}]}}}").await?;
        eventually(READY, "another plugin pod", || async {
            ensure!(f.operand(Stage::DevicePlugin).await?.metadata.uid != plugin);
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        ensure!(f.operand(Stage::Driver).await?.metadata.uid == driver, "the driver's pod was recreated");
        let pod = f.pods(&f.users()).get("training").await?;
        ensure!(pod.status.and_then(|status| status.phase).as_deref() == Some("Running"));
        Ok(())
    });
}
