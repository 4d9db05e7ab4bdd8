//! A new revision on a real node: the driver is replaced only when no operand and no GPU pod uses it.

use anyhow::ensure;
use e2e::eventually;
use gpu_operator_crd::{Phase, policy::Stage, reason::Reason};

use crate::support::{DEFAULT_DRIVER, PLAIN_STAGES, READY, test};

const OTHER: &str = "590.10.01";

#[test]
fn a_changed_driver_waits_for_gpu_pods_and_then_moves_by_itself() {
    test(|f| async move {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.run_gpu_pod("training").await?;
        f.apply(&format!("{{defaults: {{driver: {{version: {OTHER}}}}}}}")).await?;
        f.wait_for_reason(Reason::GpuPodsInUse).await?;
        let status = f.status().await?;
        ensure!(status.phase == Phase::Ready && status.waits_on == [format!("{}/training", f.users())], "{status:?}");
        ensure!(f.host.standin().loaded_driver().as_deref() == Some(DEFAULT_DRIVER), "the driver moved under a pod");
        f.cluster.kubectl(&["delete", "pod", "training", "-n", &f.users()])?;
        eventually(READY, "the other driver", || async {
            let loaded = f.host.standin().loaded_driver();
            ensure!(loaded.as_deref() == Some(OTHER), "{loaded:?}, {:?}", f.status().await?.message);
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        eventually(READY, "an end of the move", || async {
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
fn a_new_plugin_leaves_the_driver_and_running_gpu_pods_alone() {
    test(|f| async move {
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
        ensure!(f.operand(Stage::Driver).await?.metadata.uid == driver, "the driver's pod was made anew");
        let pod = f.pods(&f.users()).get("training").await?;
        ensure!(pod.status.and_then(|status| status.phase).as_deref() == Some("Running"));
        Ok(())
    });
}
