//! The driver's container dies while a pod computes on a GPU: the pod keeps its GPU, the node reports the problem, and
//! no other pod is scheduled there until the node has recovered.

use anyhow::{Context, Result, ensure};
use cluster::standin::DriverMode;
use gpu_operator_crd::{health::HealthState, keys, policy::Stage, reason::Reason, stage::Phase};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use crate::support::{Fixture, READY, SHOWN, long_test, test};

/// A pod that uses a GPU all the time.
pub const BUSY: &str = "busy";
/// A pod that is created while the driver is unavailable.
const LATER: &str = "later";

/// Runs a pod that keeps the driver open, as CUDA programs do.
pub async fn run_busy_pod(f: &Fixture) -> Result<Pod> {
    f.run_on_gpu(BUSY, &["nvidia-smi", "--loop=1"]).await
}

/// Checks that the pod is still running and was not restarted.
pub async fn runs_on(f: &Fixture, before: &Pod) -> Result<()> {
    let now = f.pods(&f.users()).get(BUSY).await?;
    ensure!(now.uid() == before.uid(), "this is another pod with the same name");
    let status = now
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_ref()?.first())
        .context("no container status")?;
    ensure!(
        status.restart_count == 0 && status.state.as_ref().is_some_and(|state| state.running.is_some()),
        "{status:?}"
    );
    Ok(())
}

/// Kills the driver's container, which may not have written its process id yet.
pub async fn kill_driver(f: &Fixture) -> Result<()> {
    // Its pod uses the host's PID namespace.
    let kill = ["/bin/sh", "-ec", "kill -9 $(cat /run/nvidia/nvidia-driver.pid)"];
    eventually(SHOWN, "the end of the driver's container", || async { f.host.exec(&kill).map(drop) }).await
}

/// Returns the number of restarts of the driver's container.
async fn restarts(f: &Fixture) -> Result<i32> {
    let pod = f.operand(Stage::Driver).await?;
    let status = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref()?.first());
    Ok(status.context("no status")?.restart_count)
}

/// Waits until the driver's container has this number of restarts.
pub async fn wait_for_restart(f: &Fixture, wanted: i32) -> Result<()> {
    eventually(READY, "the driver's container started again", || async {
        let restarts = restarts(f).await?;
        ensure!(restarts >= wanted, "{restarts} restarts");
        Ok(())
    })
    .await
}

/// Checks that the node is not ready and has no allocatable GPU, and that its GPUs' health is still known.
pub async fn is_out_of_service(f: &Fixture, reason: Reason) -> Result<()> {
    f.wait_for_status("a node out of service", |status| {
        ensure!(
            status.phase == Phase::Driver && status.reason() == Some(reason),
            "{:?}: {}",
            status.reason,
            status.message
        );
        ensure!(status.gpus.allocatable == 0, "{:?}", status.gpus);
        ensure!(status.health == Some(HealthState::Healthy), "{:?}", status.health);
        Ok(())
    })
    .await?;
    f.wait_for_allocatable(0, READY).await
}

#[test]
fn a_current_image_takes_over_the_driver_under_a_gpu_pod() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let busy = run_busy_pod(&f).await?;
        let plugin = f.operand(Stage::DevicePlugin).await?;
        ensure!(f.host.standin().loads()? == 1);
        // Held before its root becomes visible again, so that the state in between can be checked.
        f.host.standin().set_driver_mode(&DriverMode::Hold)?;
        kill_driver(&f).await?;
        wait_for_restart(&f, 1).await?;
        is_out_of_service(&f, Reason::DriverInstalling).await?;
        let message = f.status().await?.message;
        ensure!(message.contains("no libnvidia-ml.so"), "{message}");
        runs_on(&f, &busy).await?;
        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready().await?;
        runs_on(&f, &busy).await?;
        ensure!(f.host.standin().loads()? == 1, "the driver was loaded again");
        ensure!(restarts(&f).await? == 1);
        ensure!(
            f.operand(Stage::DevicePlugin).await?.uid() != plugin.uid(),
            "the plugin still uses the root of the dead container"
        );
        f.run_gpu_pod("another").await?;
        f.sees_one_gpu("another")
    });
}

#[test]
fn a_driver_that_fails_to_restart_does_not_disturb_a_gpu_pod() {
    test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let busy = run_busy_pod(&f).await?;
        // This mode also ends the running container.
        f.host.standin().set_driver_mode(&DriverMode::Crash { message: "kernel headers not found".into() })?;
        is_out_of_service(&f, Reason::KernelHeadersUnavailable).await?;
        // The status may first report what other pods of the node wait for.
        f.wait_for_status("the driver's own message", |status| {
            ensure!(status.message.contains("kernel headers not found"), "{}", status.message);
            Ok(())
        })
        .await?;
        runs_on(&f, &busy).await?;
        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready().await?;
        runs_on(&f, &busy).await?;
        ensure!(f.host.standin().loads()? == 1, "the driver was loaded again");
        Ok(())
    });
}

/// Kills the driver's container of an image that cannot take over a loaded driver. While the pod computes, the node
/// reports this and no container restarts repeatedly. Once the pod has ended, the node recovers without intervention.
async fn recovery_waits_for_the_pod(f: &Fixture) -> Result<()> {
    let busy = run_busy_pod(f).await?;
    let loads = f.host.standin().loads()?;
    kill_driver(f).await?;
    wait_for_restart(f, 1).await?;
    is_out_of_service(f, Reason::DriverInUse).await?;
    let status = f.status().await?;
    ensure!(status.waits_on == [format!("{}/{BUSY}", f.users())], "{status:?}");
    runs_on(f, &busy).await?;
    // Another pod with a GPU is not scheduled there, and does not block the recovery that its scheduling waits for.
    f.create_on_gpu(LATER, &["/usr/bin/entrypoint", "hold"]).await?;
    eventually(READY, "a pod that cannot be scheduled", || async {
        let conditions = f.pods(&f.users()).get(LATER).await?.status.and_then(|status| status.conditions);
        let scheduled = conditions.into_iter().flatten().find(|condition| condition.type_ == "PodScheduled");
        ensure!(scheduled.as_ref().is_some_and(|condition| condition.status == "False"), "{scheduled:?}");
        Ok(())
    })
    .await?;
    f.cluster.kubectl(&["delete", "pod", BUSY, "-n", &f.users()])?;
    wait_for_recovery(f, loads + 1, 1).await?;
    f.runs(LATER).await?;
    f.cluster.kubectl(&["delete", "pod", LATER, "-n", &f.users()]).map(drop)
}

/// Waits until the driver is loaded again and the node is ready, and checks the number of restarts.
async fn wait_for_recovery(f: &Fixture, wanted: usize, starts: i32) -> Result<()> {
    eventually(READY, "the driver's next load", || async {
        let loads = f.host.standin().loads()?;
        ensure!(loads == wanted, "{loads} loads");
        Ok(())
    })
    .await?;
    f.wait_until_ready().await?;
    let restarts = restarts(f).await?;
    ensure!(restarts == starts, "{restarts} restarts");
    Ok(())
}

/// Waits until the node is ready with a driver of exactly this version.
async fn is_ready_with(f: &Fixture, version: &str) -> Result<()> {
    eventually(READY, &format!("driver {version}"), || async {
        let loaded = f.host.standin().loaded_driver();
        ensure!(loaded.as_deref() == Some(version), "{loaded:?}");
        Ok(())
    })
    .await?;
    f.wait_until_ready().await
}

#[test]
fn an_image_that_cannot_take_over_waits_for_the_gpu_pod() {
    long_test(async |f| {
        // A current image that finds another configuration's driver, one from before the digest, and a precompiled one.
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        f.host.exec(&["/bin/sh", "-ec", "echo another > /run/nvidia/nvidia-driver.state"])?;
        recovery_waits_for_the_pod(&f).await.context("another configuration")?;
        f.apply("{defaults: {driver: {version: 535.261.03}}}").await?;
        is_ready_with(&f, "535.261.03").await?;
        recovery_waits_for_the_pod(&f).await.context("an old image")?;
        // If only plugin and probe have NVML open, they release it.
        let loads = f.host.standin().loads()?;
        kill_driver(&f).await?;
        wait_for_recovery(&f, loads + 1, 2).await.context("an old image without a GPU pod")?;
        f.apply("{defaults: {driver: {version: 580.173.02, container: {precompiled: true}}}}").await?;
        is_ready_with(&f, "580.173.02").await?;
        recovery_waits_for_the_pod(&f).await.context("a precompiled image")
    });
}

#[test]
fn another_image_of_the_same_driver_takes_over_under_a_pod() {
    test(async |f| {
        const MIRROR: &str = "localhost:5999/mirror/driver";
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let image = driver_image(&f).await?;
        let (name, tag) = image.rsplit_once(':').context("no tag")?;
        let loads = f.host.standin().loads()?;
        let training = run_busy_pod(&f).await?;
        // The preflight finds that the image does not exist, before anything on the node changes.
        f.apply(&format!("{{defaults: {{driver: {{image: {{repository: {MIRROR}}}}}}}}}")).await?;
        eventually(READY, "the end of the preflight", || async {
            let status = f.policies().get(&f.policy).await?.status.context("no status")?;
            let stalled = status.conditions.into_iter().find(|condition| condition.type_ == "Stalled");
            let stalled = stalled.context("no condition")?;
            ensure!(stalled.reason == Reason::RolloutHalted.as_str(), "{stalled:?}");
            ensure!(stalled.message.contains(&format!("{MIRROR}:{tag}")), "{}", stalled.message);
            Ok(())
        })
        .await?;
        ensure!(driver_image(&f).await? == image && f.status().await?.phase == Phase::Ready, "the node has changed");
        // Kubelet tries again. The image contains no shell, so its container cannot start.
        let mirrored = format!("{MIRROR}:{tag}");
        f.host.exec(&["ctr", "--namespace=k8s.io", "images", "tag", &format!("{name}:{tag}"), &mirrored])?;
        eventually(READY, "the other image", || async {
            let image = driver_image(&f).await?;
            ensure!(image == mirrored, "{image}");
            Ok(())
        })
        .await?;
        f.wait_until_ready().await?;
        ensure!(f.host.standin().loads()? == loads, "the driver was loaded again");
        runs_on(&f, &training).await?;
        let selector = format!("{}={}", keys::STAGE, keys::PREFLIGHT);
        eventually(SHOWN, "the end of the preflight's pod", || async {
            let left = f.pods_here(&selector).await?;
            ensure!(left.is_empty(), "{:?}", left.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
            Ok(())
        })
        .await
    });
}

/// Returns the image of the driver's pod.
async fn driver_image(f: &Fixture) -> Result<String> {
    let spec = f.operand(Stage::Driver).await?.spec.context("no spec")?;
    spec.containers.into_iter().next().and_then(|container| container.image).context("no image")
}
