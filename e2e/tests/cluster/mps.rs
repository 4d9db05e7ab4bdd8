//! GPUs shared by MPS, with NVIDIA's own control daemons of its device plugin and of its driver; only a GPU is missing.

use std::path::Path;

use anyhow::{Result, ensure};
use e2e::{debian, eventually};
use gpu_operator_crd::{keys, policy::Stage};
use kube::ResourceExt;

use crate::support::{Fixture, GPUS, READY, started, test};

const DRIVER: &str = "535.261.03";
/// The log of the daemon's servers on the host.
const LOG: &str = "/run/nvidia/mps/nvidia.com/gpu/log/server.log";

/// Requests a server from the daemon in its container, which has no shell.
const START_SERVER: &str = "
    for process in /proc/[0-9]*; do
        if grep -qx mps-control-dae $process/comm 2>/dev/null; then daemon=${process#/proc/}; fi
    done
    export CUDA_MPS_PIPE_DIRECTORY=/mps/nvidia.com/gpu/pipe
    echo start_server -uid 0 | nsenter --target $daemon --mount /usr/bin/nvidia-cuda-mps-control";

/// Installs the driver's own CUDA and MPS on the host, next to the stand-in NVML.
fn install_mps(f: &Fixture, driver: &Path) -> Result<()> {
    const INSTALL: &str = "
        cp $1/usr/lib/x86_64-linux-gnu/nvidia/current/libcuda.so.$2 /usr/lib/x86_64-linux-gnu/
        cp $1/usr/bin/nvidia-cuda-mps-control $1/usr/sbin/nvidia-cuda-mps-server /usr/bin/";
    f.host.exec(&["/bin/sh", "-ec", INSTALL, "install", &driver.display().to_string(), DRIVER]).map(drop)
}

#[test]
fn nvidias_control_daemon_runs_and_its_server_fails_only_for_lack_of_a_gpu() {
    test(|f| async move {
        f.load_host_driver(DRIVER).await?;
        install_mps(&f, &debian::driver("535")?.root)?;
        f.apply("{defaults: {devicePlugin: {sharing: {mps: {replicas: 4}}}}}").await?;
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
        .await
    });
}
