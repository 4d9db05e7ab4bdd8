//! A failing driver is reported with the pod's own message, and recovers once the cause is gone.

use anyhow::{Result, ensure};
use cluster::standin::DriverMode;
use gpu_operator_crd::reason::Reason;
use harness::wait::eventually;

use crate::support::{DEFAULT_DRIVER, Fixture, READY, SHOWN, alone, test};

/// Checks that node and policy report the failure, and that `kubectl describe` shows it as an Event with the Node, the GpuNode and
/// the policy.
async fn shows(f: &Fixture, reason: Reason, words: &str) -> Result<()> {
    let message = f.wait_for_reason(reason).await?;
    ensure!(message.contains(words), "{message}");
    f.wait_for_condition("Stalled", "True").await?;
    f.wait_for_condition("Ready", "False").await?;
    let (node, policy) = (f.host.name(), f.policy.clone());
    let objects = [("node", &node), ("gpunode", &node), ("clustergpupolicy", &policy)];
    // Events are written after the statuses.
    eventually(SHOWN, "the Events", || async {
        for (kind, name) in objects {
            let description = f.cluster.kubectl(&["describe", kind, name])?;
            let events = description.split("\nEvents:").nth(1).unwrap_or_default();
            let shown = events.lines().any(|line| line.contains("Warning") && line.contains(reason.as_str()));
            ensure!(shown, "no Warning {reason} on the {kind}:\n{events}");
        }
        Ok(())
    })
    .await
}

#[test]
fn a_missing_image_is_reported() {
    test(async |f| {
        f.apply("{defaults: {driver: {version: 590.99.99}}}").await?;
        // Nothing listens at the image's registry, so it is unknown whether the image exists.
        shows(&f, Reason::ImagePullFailed, "nvidia/driver:590.99.99-ubuntu22.04").await?;
        f.apply("{}").await?;
        f.wait_until_ready().await
    });
}

#[test]
fn a_crashing_container_is_reported() {
    test(async |f| {
        f.host.standin().set_driver_mode(&DriverMode::Crash { message: "kernel headers not found".into() })?;
        f.apply("{}").await?;
        shows(&f, Reason::KernelHeadersUnavailable, "kernel headers not found").await?;
        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready().await
    });
}

#[test]
fn a_driver_of_the_wrong_version_is_reported() {
    test(async |f| {
        f.host.standin().set_driver_mode(&DriverMode::WrongVersion { loads: "570.1.1".into() })?;
        f.apply("{}").await?;
        // Until the version is loaded there is no failure to report.
        eventually(READY, "the other version", || async {
            ensure!(f.host.standin().loaded_driver().as_deref() == Some("570.1.1"));
            Ok(())
        })
        .await?;
        shows(&f, Reason::DriverVersionMismatch, "570.1.1").await?;
        f.host.standin().set_driver_mode(&DriverMode::Ok)?;
        f.wait_until_ready().await
    });
}

#[test]
fn a_loaded_driver_in_use_is_reported() {
    test(async |f| {
        // Loaded by a third party's container, and in use by a process outside pods.
        let standin = f.host.standin();
        standin.set_other_references(1)?;
        let module = standin.dir().join("module/nvidia");
        std::fs::create_dir_all(module.join("holders"))?;
        std::fs::write(module.join("version"), "570.1.1\n")?;
        std::fs::write(module.join("refcnt"), "1\n")?;
        // By default, a module that the probe reports before the policy is applied counts as the host's own.
        f.apply("{defaults: {driver: {source: Container}}}").await?;
        shows(&f, Reason::DriverInUse, "570.1.1").await?;
        standin.set_other_references(0)?;
        f.wait_until_ready().await?;
        ensure!(f.host.standin().loaded_driver().as_deref() == Some(DEFAULT_DRIVER));
        Ok(())
    });
}

#[test]
fn pods_that_the_api_server_rejects_are_reported() {
    alone(async |f| {
        let namespace = format!("namespace/{}", f.cluster.namespace());
        let enforce = |level: &str| {
            f.cluster.kubectl(&[
                "label",
                "--overwrite",
                &namespace,
                &format!("pod-security.kubernetes.io/enforce={level}"),
            ])
        };
        enforce("restricted")?;
        let outcome = async {
            f.apply("{}").await?;
            shows(&f, Reason::PodsForbidden, "PodSecurity").await
        }
        .await;
        enforce("privileged")?;
        outcome?;
        // The DaemonSet controller retries with increasing pauses.
        f.wait_until_ready().await
    });
}
