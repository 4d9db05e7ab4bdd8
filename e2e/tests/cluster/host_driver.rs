//! A driver of the host's own operating system image is left unchanged, and what CUDA needs beside it is checked.

use std::fs;

use anyhow::{Result, ensure};
use cluster::{node::real_node::HostDriver, standin::Gpu};
use gpu_operator_crd::{policy::Stage, reason::Reason};
use harness::wait::eventually;
use serde_json::{Map, json};

use crate::support::{Fixture, READY, long_test, test};

#[test]
fn a_loaded_host_driver_is_used_and_no_driver_pod_is_created() {
    test(async |f| {
        f.load_host_driver("580.173.02").await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        ensure!(f.operands(Stage::Driver).await?.is_empty(), "a driver pod was created");
        ensure!(f.host.standin().loaded_driver().as_deref() == Some("580.173.02"));
        f.run_gpu_pod("on-host-driver").await?;
        f.sees_one_gpu("on-host-driver")
    });
}

#[test]
fn a_host_driver_that_is_not_loaded_is_not_overwritten() {
    test(async |f| {
        f.host.set_host_driver(&HostDriver::Installed("580.173.02".into()))?;
        f.wait_for_status("the host's driver in the report", |status| {
            ensure!(
                status.report.as_ref().is_some_and(|report| !report.driver.installed.is_empty()),
                "{:?}",
                status.report
            );
            Ok(())
        })
        .await?;
        f.apply("{}").await?;
        let message = f.wait_for_reason(Reason::DriverNotLoaded).await?;
        ensure!(message.contains("580.173.02"), "{message}");
        ensure!(f.operands(Stage::Driver).await?.is_empty(), "a driver pod was created");
        ensure!(f.host.standin().loaded_driver().is_none());
        f.host.set_host_driver(&HostDriver::Loaded("580.173.02".into()))?;
        f.wait_until_ready().await
    });
}

/// A process that has the name of NVIDIA's, and ends by itself.
const START_FABRIC_MANAGER: &str = "cp /bin/sleep /run/nv-fabricmanager; /run/nv-fabricmanager 300 >/dev/null 2>&1 & echo $! > /run/nv-fabricmanager.pid";
const END_FABRIC_MANAGER: &str = "kill $(cat /run/nv-fabricmanager.pid); rm -f /run/nv-fabricmanager*";

/// Adds an NVSwitch of the A100 to the PCI bus, or removes it.
fn set_switch(f: &Fixture, present: bool) -> Result<()> {
    let device = f.host.standin().dir().join("pci/0000:c4:00.0");
    if !present {
        return Ok(fs::remove_dir_all(device)?);
    }
    fs::create_dir_all(&device)?;
    for (file, text) in [("vendor", "0x10de"), ("class", "0x068000"), ("device", "0x1af1")] {
        fs::write(device.join(file), text)?;
    }
    Ok(())
}

/// Sets the result of `cuInit` on the node.
fn set_cuda_error(f: &Fixture, code: u32) -> Result<()> {
    f.host.standin().set_nvml(&Gpu::h100(8), &Map::from_iter([("cudaError".to_owned(), json!(code))]))
}

/// Checks that the node is not ready for this reason, although kubelet offers its GPUs.
async fn fails(f: &Fixture, reason: Reason, words: &str) -> Result<()> {
    // Device nodes have a minute to appear.
    eventually(2 * READY, &format!("reason {reason}"), || async {
        let status = f.status().await?;
        ensure!(status.reason() == Some(reason), "{:?} {:?}: {}", status.phase, status.reason(), status.message);
        ensure!(status.message.contains(words), "{}", status.message);
        Ok(())
    })
    .await?;
    ensure!(f.allocatable().await? == 8, "the GPUs are not allocatable");
    let shown = f.cluster.kubectl(&["get", "gpunodes", &f.host.name()])?;
    ensure!(shown.contains(&reason.to_string()), "{shown}");
    Ok(())
}

#[test]
fn a_driver_on_which_cuda_does_not_work_is_not_ready() {
    long_test(async |f| {
        f.load_host_driver("580.173.02").await?;
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        let on_host = |script: &str| f.host.exec(&["/bin/sh", "-ec", script]);

        let removed =
            on_host("cd /dev; stat -c '%n c 0x%t 0x%T' nvidia-uvm nvidia-uvm-tools; rm nvidia-uvm nvidia-uvm-tools")?;
        fails(&f, Reason::DeviceNodesMissing, "nvidia-modprobe -u -c 0").await?;
        for node in removed.lines() {
            on_host(&format!("cd /dev; mknod -m 666 {node}"))?;
        }
        f.wait_until_ready().await?;

        set_switch(&f, true)?;
        fails(&f, Reason::FabricStarting, "no process nv-fabricmanager runs").await?;
        on_host(START_FABRIC_MANAGER)?;
        f.wait_until_ready().await?;

        // What only CUDA shows: cuInit is called again because the fabric manager is gone.
        set_cuda_error(&f, 999)?;
        on_host(END_FABRIC_MANAGER)?;
        set_switch(&f, false)?;
        fails(&f, Reason::CudaInitFailed, "error 999").await?;
        set_cuda_error(&f, 0)?;
        f.wait_until_ready().await
    });
}
