//! Waiting for the state of node and policy.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use gpu_operator_common::quantity;
use gpu_operator_crd::{GpuNodeStatus, Phase, keys, reason::Reason};
use harness::wait::eventually;
use kube::ResourceExt;

use super::{DEFAULT_DRIVER, DETECTOR_PODS, Fixture, GPUS, PROBE_PODS, READY, SHOWN};

impl Fixture {
    /// Reboots the node, and waits until it is Ready again.
    pub fn reboot(&self) -> Result<()> {
        self.host.reboot()?;
        self.cluster.kubectl(&["wait", "--for=condition=Ready", "node", &self.host.name(), "--timeout=5m"])?;
        Ok(())
    }

    /// Reboots a node whose driver the operator's pod loads, and waits until it is loaded again and GPUs are allocatable.
    pub async fn reboot_with_driver(&self) -> Result<()> {
        self.reboot()?;
        self.wait_for_driver().await?;
        self.wait_for_allocatable(GPUS, READY).await
    }

    /// Waits until the default driver is loaded after a reboot.
    pub async fn wait_for_driver(&self) -> Result<()> {
        eventually(READY, "the driver, loaded again", || async {
            ensure!(self.host.standin().loaded_driver().as_deref() == Some(DEFAULT_DRIVER));
            Ok(())
        })
        .await
    }

    /// Waits until this number of GPUs is allocatable.
    pub async fn wait_for_allocatable(&self, gpus: u32, within: Duration) -> Result<()> {
        eventually(within, &format!("{gpus} allocatable GPUs"), || async move {
            let allocatable = self.allocatable().await?;
            ensure!(allocatable == gpus, "{allocatable} allocatable GPUs");
            Ok(())
        })
        .await
    }

    /// Waits until the node's status passes a check.
    pub async fn wait_for_status(&self, what: &str, check: impl Fn(&GpuNodeStatus) -> Result<()>) -> Result<()> {
        let check = &check;
        eventually(READY, what, || async move { check(&self.status().await?) }).await
    }

    /// Waits until the node and the policy are ready.
    pub async fn wait_until_ready(&self) -> Result<()> {
        self.wait_for_status("a ready node", |status| {
            ensure!(status.phase == Phase::Ready, "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await?;
        ensure!(self.allocatable().await? == GPUS, "Ready, but allocatable is {}", self.allocatable().await?);
        self.wait_for_condition("Ready", "True").await
    }

    /// Waits until the node and the policy are ready with this quantity of a resource.
    pub async fn wait_until_ready_with(&self, resource: &str, count: u32) -> Result<()> {
        eventually(READY, &format!("{count} of {resource}"), || async move {
            let allocatable = self.node().await?.status.and_then(|status| status.allocatable).unwrap_or_default();
            let found = allocatable.get(resource).map(|quantity| quantity::count(&quantity.0)).transpose()?;
            ensure!(found == Some(count), "{found:?}");
            let status = self.status().await?;
            ensure!(status.is_ready(), "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await?;
        self.wait_for_condition("Ready", "True").await
    }

    /// Waits until a condition of the policy, as last changed, has this status.
    pub async fn wait_for_condition(&self, kind: &str, wanted: &str) -> Result<()> {
        eventually(READY, &format!("condition {kind}={wanted}"), || async move {
            let policy = self.policies().get(&self.policy).await?;
            let status = policy.status.context("no status")?;
            ensure!(status.observed_generation == policy.metadata.generation, "the change is not observed yet");
            let condition =
                status.conditions.iter().find(|condition| condition.type_ == kind).context("no such condition")?;
            ensure!(condition.status == wanted, "{condition:?}");
            Ok(())
        })
        .await
    }

    /// Waits until the node's status has a reason, for at most [`SHOWN`], and returns its message.
    pub async fn wait_for_reason(&self, reason: Reason) -> Result<String> {
        eventually(SHOWN, &format!("reason {reason}"), || async move {
            let status = self.status().await?;
            ensure!(status.reason() == Some(reason), "{:?} {:?}: {}", status.phase, status.reason(), status.message);
            Ok(status.message)
        })
        .await
    }

    /// Waits until the node, which has no GPU any more, has neither a probe nor a GpuNode, and its detector has seen that: GPUs that return
    /// earlier are announced within the hour only.
    pub async fn wait_until_forgotten(&self) -> Result<()> {
        eventually(READY, "no probe and no GpuNode", || async {
            ensure!(self.pods_here(PROBE_PODS).await?.is_empty(), "the probe's pod exists");
            ensure!(self.status().await.is_err(), "the GpuNode exists");
            let label = self.node().await?.labels().get(keys::PRESENT).cloned();
            ensure!(label.as_deref() == Some("false"), "{label:?}");
            let pods = self.pods_here(DETECTOR_PODS).await?;
            let detector = pods.first().context("no detector")?.name_any();
            let log =
                self.cluster.kubectl(&["logs", &detector, "--namespace", self.cluster.namespace(), "--tail=1"])?;
            ensure!(log.contains("no GPU is left"), "the detector has not seen it: {log}");
            Ok(())
        })
        .await
    }

    /// Waits until no operand is left.
    pub async fn wait_for_no_operands(&self) -> Result<()> {
        eventually(READY, "no operand pods", || async move {
            let left: Vec<_> = self.pods_here(keys::STAGE).await?.iter().map(ResourceExt::name_any).collect();
            ensure!(left.is_empty(), "{left:?}");
            Ok(())
        })
        .await
    }

    /// Waits until nothing has been written to the node's objects and its policy for this time.
    pub async fn wait_until_settled(&self, quiet: Duration) -> Result<()> {
        self.wait_until_quiet(&self.policy, quiet).await
    }

    /// Waits until nothing has been written to the node's objects and this policy for this time.
    pub async fn wait_until_quiet(&self, policy: &str, quiet: Duration) -> Result<()> {
        let versions = || {
            let version = "-o=jsonpath={.metadata.resourceVersion}";
            let gpu_node = self.cluster.kubectl(&["get", "gpunode", &self.host.name(), version])?;
            let policy = self.cluster.kubectl(&["get", "clustergpupolicy", policy, version])?;
            let generation = "-o=jsonpath={.items[*].metadata.generation}";
            let sets = self.cluster.kubectl(&[
                "get",
                "daemonsets",
                "-A",
                "-l",
                &format!("{}={policy}", keys::POLICY),
                generation,
            ])?;
            anyhow::Ok((gpu_node, policy, sets))
        };
        eventually(READY, "a time without a write", || async {
            let before = versions()?;
            // The absence of writes has no event to wait for.
            tokio::time::sleep(quiet).await;
            let after = versions()?;
            ensure!(before == after, "{before:?} {after:?}");
            Ok(())
        })
        .await
    }
}
