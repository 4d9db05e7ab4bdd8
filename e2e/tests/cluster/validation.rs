//! Validation of a node by a test pod on one of its GPUs.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{Phase, gpunode::ValidationResult, keys, reason::Reason};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;

use crate::support::{Fixture, GPUS, READY, long_test, test};

/// The time limit until a full node continues without a test, normally after two minutes, on a slow machine.
const SKIPPED: Duration = Duration::from_mins(10);

async fn tests(f: &Fixture) -> Result<Vec<Pod>> {
    f.pods_here(&format!("{}={}", keys::STAGE, keys::VALIDATION)).await
}

async fn wait_for_result(f: &Fixture, wanted: ValidationResult, within: Duration) -> Result<String> {
    eventually(within, "a validated and ready node", || async {
        let status = f.status().await?;
        let record = status.validation.with_context(|| format!("{:?}: {}", status.reason, status.message))?;
        ensure!(record.result == wanted && status.phase == Phase::Ready, "{:?} {record:?}", status.phase);
        Ok(record.message)
    })
    .await
}

#[test]
fn a_node_is_ready_once_a_pod_has_used_one_of_its_gpus() {
    test(async |f| {
        f.apply("{readiness: {validation: {mode: OnInstall}}}").await?;
        let message = wait_for_result(&f, ValidationResult::Passed, READY).await?;
        ensure!(message.contains("printed \"Test PASSED\""), "{message}");
        f.wait_until_ready().await?;
        eventually(READY, "no remaining test pod", || async {
            ensure!(tests(&f).await?.is_empty());
            Ok(())
        })
        .await
    });
}

#[test]
fn a_failed_test_is_reported_and_another_image_tried_at_once() {
    test(async |f| {
        // The probe's program without arguments prints its usage, without any error, and fails.
        let image = "{repository: \"localhost:5999/nvml-probe\", tag: dev}";
        f.apply(&format!("{{readiness: {{validation: {{mode: OnInstall, image: {image}}}}}}}")).await?;
        let message = f.wait_for_reason(Reason::ValidationFailed).await?;
        ensure!(message.contains("exit code 2") && message.contains("Print version"), "{message}");
        f.wait_for_condition("Ready", "False").await?;
        f.apply("{readiness: {validation: {mode: OnInstall}}}").await?;
        wait_for_result(&f, ValidationResult::Passed, READY).await?;
        f.wait_until_ready().await
    });
}

#[test]
fn a_full_node_is_upgraded_without_a_test_under_its_pods() {
    long_test(async |f| {
        f.apply("{}").await?;
        f.wait_until_ready().await?;
        for number in 0..GPUS {
            f.run_gpu_pod(&format!("user-{number}")).await?;
        }
        f.apply("{readiness: {validation: {mode: OnUpgrade}}, defaults: {devicePlugin: {env: [{name: NEW, value: \"1\"}]}}}")
            .await?;
        f.wait_for_reason(Reason::Validating).await?;
        let message = wait_for_result(&f, ValidationResult::Skipped, SKIPPED).await?;
        ensure!(message.contains("Insufficient nvidia.com/gpu"), "{message}");
        let users = f.pods(&f.users()).list(&ListParams::default()).await?;
        let running = users.iter().filter(|pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running")
                && pod.metadata.deletion_timestamp.is_none()
        });
        ensure!(running.count() == usize::try_from(GPUS)?, "a pod was preempted");
        f.wait_until_ready().await
    });
}
