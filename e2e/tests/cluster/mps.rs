//! GPUs shared by MPS, with NVIDIA's own control daemons of its device plugin and of its driver; only a GPU is missing.

use std::{path::Path, time::Duration};

use anyhow::{Result, ensure};
use cluster::standin::DriverMode;
use gpu_operator_crd::{keys, policy::Stage, reason::Reason};
use harness::{debian, wait::eventually};
use kube::ResourceExt;

use crate::{
    driver_container::{BUSY, is_out_of_service, kill_driver, run_busy_pod, runs_on, wait_for_restart},
    support::{Fixture, GPUS, READY, long_test, started, test},
};

const DRIVER: &str = "535.261.03";
const SHARED: &str = "{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}";
/// The daemon's shared memory on the host, which is `/dev/shm` of the pods.
const SHARED_MEMORY: &str = "/run/nvidia/mps/shm";
/// The log of the daemon's servers on the host.
const LOG: &str = "/run/nvidia/mps/nvidia.com/gpu/log/server.log";

/// Requests a server from the daemon in its container, which has no shell.
const START_SERVER: &str = "
    for process in /proc/[0-9]*; do
        if grep -qx mps-control-dae $process/comm 2>/dev/null; then daemon=${process#/proc/}; fi
    done
    export CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe
    echo start_server -uid 0 | nsenter --target $daemon --mount /usr/bin/nvidia-cuda-mps-control";

/// Ends the daemon, and removes the program without which it cannot start again.
const END_DAEMON: &str = "
    rm /usr/bin/nvidia-cuda-mps-control
    for process in /proc/[0-9]*; do
        if grep -qx mps-control-dae $process/comm 2>/dev/null; then kill -9 ${process#/proc/}; fi
    done";
/// How long a node stays ready while a stage that has been proven is down.
const GRACE: Duration = Duration::from_mins(1);

/// Installs the driver's own CUDA and MPS on the host, next to the stand-in NVML.
fn install_mps(f: &Fixture, driver: &Path) -> Result<()> {
    const INSTALL: &str = "
        cp \"$1\"/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.$2 /usr/lib/x86_64-linux-gnu/
        cp \"$1\"/usr/bin/nvidia-cuda-mps-control \"$1\"/usr/sbin/nvidia-cuda-mps-server /usr/bin/";
    f.host.exec(&["/bin/sh", "-ec", INSTALL, "install", &driver.display().to_string(), DRIVER]).map(drop)
}

/// Installs the driver's own MPS in the driver's container once that is held back, which is after its guard.
async fn install_mps_in_held_container(f: &Fixture, driver: &Path) -> Result<()> {
    const INSTALL: &str = "
        container=/proc/$(cat /run/nvidia/nvidia-driver.pid)/root
        cp \"$1\"/usr/bin/nvidia-cuda-mps-control \"$1\"/usr/sbin/nvidia-cuda-mps-server $container/usr/bin/";
    let install = ["/bin/sh", "-ec", INSTALL, "install", &driver.display().to_string()];
    eventually(READY, "a driver container that is held back", || async { f.host.exec(&install).map(drop) }).await
}

/// Creates a file in the daemon's shared memory on the host, and checks that a pod sees it.
fn shares_memory_with(f: &Fixture, pod: &str, file: &str) -> Result<()> {
    f.host.exec(&["/bin/mountpoint", SHARED_MEMORY])?;
    f.host.exec(&["/bin/touch", &format!("{SHARED_MEMORY}/{file}")])?;
    let files = f.lists(pod, "/dev/shm")?;
    ensure!(files.iter().any(|seen| seen == file), "{pod} sees {files:?}");
    Ok(())
}

#[test]
fn a_node_is_ready_only_with_nvidias_control_daemon() {
    long_test(async |f| {
        f.load_host_driver(DRIVER).await?;
        install_mps(&f, &debian::driver("535")?.root)?;
        f.apply(SHARED).await?;
        f.wait_until_ready_with(keys::GPU_RESOURCE, 4 * GPUS).await?;
        let daemon = f.operand(Stage::Mps).await?;
        ensure!(started(&daemon).is_some(), "{:?}", daemon.status);
        let (daemon, namespace) = (daemon.name_any(), f.cluster.namespace());
        let log = f.cluster.kubectl(&["logs", &daemon, "-n", namespace])?;
        ensure!(log.contains("Starting control daemon using socket"), "{log}");

        // As the first client would do.
        f.host.exec(&["/bin/sh", "-ec", START_SERVER])?;
        eventually(READY, "the server's log", || async {
            let log = f.host.exec(&["/bin/cat", LOG])?;
            ensure!(log.contains("Driver initialization failed with: no CUDA-capable device is detected"), "{log}");
            Ok(())
        })
        .await?;

        f.host.exec(&["/bin/sh", "-ec", END_DAEMON])?;
        eventually(GRACE + READY, "a node that is not ready", || async {
            let status = f.status().await?;
            ensure!(status.reason() == Some(Reason::ContainerCrashed), "{:?}", status.message);
            ensure!(status.message.contains("has no nvidia-cuda-mps-control"), "{}", status.message);
            ensure!(status.gpus.summary == format!("{0}/{0}", 4 * GPUS), "{}", status.gpus.summary);
            Ok(())
        })
        .await
    });
}

#[test]
fn a_restarted_driver_keeps_the_shared_memory_of_mps() {
    test(async |f| {
        let driver = debian::driver("535")?.root;
        f.host.standin().set_driver_mode(&DriverMode::Hold)?;
        f.apply(SHARED).await?;
        install_mps_in_held_container(&f, &driver).await?;
        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready_with(keys::GPU_RESOURCE, 4 * GPUS).await?;
        let busy = run_busy_pod(&f).await?;
        shares_memory_with(&f, BUSY, "first")?;
        let daemon = f.operand(Stage::Mps).await?;

        f.host.standin().set_driver_mode(&DriverMode::Hold)?;
        kill_driver(&f).await?;
        wait_for_restart(&f, 1).await?;
        install_mps_in_held_container(&f, &driver).await?;
        shares_memory_with(&f, BUSY, "second")?;
        is_out_of_service(&f, Reason::DriverInstalling).await?;
        runs_on(&f, &busy).await?;

        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready_with(keys::GPU_RESOURCE, 4 * GPUS).await?;
        runs_on(&f, &busy).await?;
        ensure!(f.operand(Stage::Mps).await?.uid() != daemon.uid(), "the daemon still uses the old driver root");
        f.run_gpu_pod("another").await?;
        f.sees_one_gpu("another")?;
        shares_memory_with(&f, "another", "third")
    });
}
