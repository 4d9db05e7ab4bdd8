//! A driver of the host's own operating system image is left unchanged.

use anyhow::ensure;
use cluster::node::real_node::HostDriver;
use gpu_operator_crd::{policy::Stage, reason::Reason};

use crate::support::test;

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
