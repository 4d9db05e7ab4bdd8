//! A GPU node of a policy, with all facts that the later steps need.

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    GpuNodeStatus, Phase,
    gpunode::{LastUpdate, Rollout, RolloutStep, StageRevisions},
    keys,
    policy::{Health, Stage},
    reason::Reason,
    report::{NvmlState, Report},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use std::{ops::Deref, time::Duration};

use crate::{
    assess::health::{self, NodeHealth},
    clock::Clock,
    container_names::GUARD,
    desired::{DesiredNode, driver::DriverChoice, expected_resources::ExpectedResources, toolkit::ToolkitChoice},
    inventory::{gpus, records},
    settings::{GRACE, GUARD_TIMEOUT, REPORT_GRACE},
    time::later,
    world::{ContainerFacts, GpuPods, ObservedTime, PodFacts, Resources, Role, TaintFact, is_gpu},
};

/// A passing state of a phase, and the failure that it becomes after a grace.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    pub passing: Reason,
    pub failure: Reason,
    pub grace: Duration,
}

#[derive(Debug)]
pub struct Member<'w> {
    desired: DesiredNode<'w>,
    /// The first taint that the policy does not tolerate, which keeps operands away.
    pub untolerated: Option<&'w TaintFact>,
    pub health_policy: &'w Health,
    pub health: NodeHealth,
    /// The most GPUs that any node of the pool has had, if the pool's `gpusPerNode` is greater: then none is missing by that number.
    pub most_in_pool: Option<u32>,
    pub expected_resources: Option<ExpectedResources>,
    /// What pods can get: the allocatable resources, or the GPUs that the DRA driver of this operator publishes for claims.
    pub served: Resources,
}

impl<'w> Deref for Member<'w> {
    type Target = DesiredNode<'w>;

    fn deref(&self) -> &DesiredNode<'w> {
        &self.desired
    }
}

impl<'w> Member<'w> {
    /// `most` is the greatest number of GPUs that any node of the pool has had.
    pub fn of(desired: DesiredNode<'w>, most: Option<u32>, clock: &Clock) -> Self {
        let settings = desired.pool.settings;
        let most_in_pool = most.filter(|most| settings.promised_gpus().is_some_and(|promised| promised > *most));
        let last = records::last_report(desired.gpu_node);
        let expected = match most_in_pool {
            Some(_) => desired.discovery.expected.in_pool(None),
            None => desired.expected,
        };
        let missing = match last {
            Some(last) => expected.unwrap_or_default().saturating_sub(gpus::on_bus(Some(last))),
            None => 0,
        };
        let health = health::of(last, desired.probe_pod(), missing, clock);
        let expected = desired.expected;
        let by_claims = desired.resource_layout.by_claims;
        Self {
            served: if by_claims { desired.published.count().into() } else { desired.node.allocatable.clone() },
            untolerated: desired.node.untolerated(&settings.tolerations).next(),
            health_policy: settings.health,
            expected_resources: expected
                .map(|expected| ExpectedResources::of(expected, health.unhealthy, last, &desired.resource_layout)),
            health,
            most_in_pool,
            desired,
        }
    }

    pub fn status(&self) -> Option<&'w GpuNodeStatus> {
        self.gpu_node?.status.as_ref()
    }

    /// Returns the status of a node that was not ready at its deadline.
    pub fn overdue(&self) -> Option<&'w GpuNodeStatus> {
        self.status().filter(|status| status.reason() == Some(Reason::ProgressDeadlineExceeded))
    }

    /// Whether a passing state of a phase has lasted for a grace, by this operator's clock alone, or has become the failure that follows it.
    pub fn has_waited(&self, phase: Phase, wait: Wait, clock: &Clock) -> bool {
        let Wait { passing, failure, grace } = wait;
        let before = self.status().filter(|before| before.phase == phase);
        before.is_some_and(|before| match before.reason() {
            Some(reason) if reason == passing => before.since().is_some_and(|since| clock.passed(since, grace)),
            reason => reason == Some(failure),
        })
    }

    /// Of any boot: GPUs and their health are as it says until the next report.
    pub fn last_report(&self) -> Option<&'w Report> {
        records::last_report(self.gpu_node)
    }

    pub fn report_is_outdated(&self) -> bool {
        self.report.is_none() && self.last_report().is_some()
    }

    pub fn rollout(&self) -> Option<&'w Rollout> {
        self.gpu_node?.spec.rollout.as_ref()
    }

    pub fn updates_begun(&self) -> u32 {
        self.gpu_node.map_or(0, |gpu_node| gpu_node.spec.updates_begun)
    }

    pub fn last_update(&self) -> Option<&'w LastUpdate> {
        self.gpu_node?.spec.last_update.as_ref()
    }

    pub fn not_before(&self) -> Option<Timestamp> {
        Some(self.gpu_node?.spec.not_before.as_ref()?.0)
    }

    pub fn want(&self) -> Option<&StageRevisions> {
        self.desired.target.variant().map(|variant| &variant.revisions)
    }

    pub fn driver(&self) -> Option<&DriverChoice> {
        self.desired.target.variant().map(|variant| &variant.key.driver)
    }

    pub fn toolkit(&self) -> Option<&ToolkitChoice> {
        self.desired.target.variant().map(|variant| &variant.key.toolkit)
    }

    pub fn model(&self) -> Option<&str> {
        self.discovery.model.as_deref()
    }

    /// The node, its policy and its probe all exist since then.
    pub fn report_awaited_since(&self) -> Option<Timestamp> {
        let created = self.policy.creation_timestamp().map(|time| time.0);
        self.probe_expected_since().into_iter().chain(created).max()
    }

    /// From then on a missing report is a failure.
    pub fn report_due(&self) -> Option<Timestamp> {
        self.report_awaited_since().map(|since| later(since, REPORT_GRACE))
    }

    /// Whether no status is written yet: the probe is about to report, and the status would be written again.
    pub fn is_awaited(&self, clock: &Clock) -> bool {
        self.last_report().is_none() && self.report_due().is_some_and(|due| !clock.reached(due))
    }

    pub fn on_bus(&self) -> u32 {
        gpus::on_bus(self.last_report())
    }

    /// By PCI address.
    pub fn missing_from(&self) -> Vec<&str> {
        let there = |address: &str| {
            self.last_report().is_some_and(|report| {
                report.gpus.iter().any(|gpu| gpu.pci_address == address)
                    || report.passed_through_at.iter().any(|at| at == address)
            })
        };
        self.discovery.seen.at.iter().copied().filter(|address| !there(address)).collect()
    }

    /// A GPU that four pods share counts as four.
    pub fn allocatable(&self) -> u32 {
        let there = &self.served;
        // Third-party plugins may have resource names other than NVIDIA's.
        let resource_names =
            self.expected_resources.iter().flat_map(|expected_resources| expected_resources.whole.keys());
        let others = resource_names.filter(|name| !is_gpu(name)).map(|name| there.amount(name));
        there.total() + others.sum::<u32>()
    }

    /// Returns a resource name that pods can request.
    pub fn requestable_name(&self) -> &str {
        let there = &self.served;
        let mut resource_names =
            self.expected_resources.iter().flat_map(|expected_resources| expected_resources.whole.keys());
        let other = resource_names.find(|name| !is_gpu(name) && there.amount(name) > 0).map(AsRef::as_ref);
        other.or(there.first_gpu().map(Interned::as_str)).unwrap_or(keys::GPU_RESOURCE)
    }

    pub fn expected_units(&self) -> Option<u32> {
        self.expected_resources.as_ref().map(ExpectedResources::units)
    }

    /// Whether all expected units are allocatable, except those of unhealthy GPUs, and the policy does not require more healthy GPUs.
    pub fn is_complete(&self) -> bool {
        let enough = |expected: u32| {
            expected.saturating_sub(self.health.unhealthy) >= health::required(self.health_policy, expected)
        };
        // GPUs in MIG mode without a MIG device have no expected units, which must not make a node ready.
        let kept = |expected_resources: &ExpectedResources| {
            expected_resources.units() > 0 && expected_resources.lacks(&self.served).is_none()
        };
        self.node.ready
            && !self.node.deleting
            && self.expected.is_some_and(enough)
            && self.expected_resources.as_ref().is_some_and(kept)
    }

    /// Whether the allocatable units are reliable. Kubelet needs some seconds to remove the GPUs of a plugin that is gone, so a node
    /// becomes ready only with a running plugin, and during an update with all stages of the new revision.
    pub fn is_believable(&self) -> bool {
        self.is_proven() || !self.is_in_its_turn() && self.status().is_some_and(GpuNodeStatus::is_ready)
    }

    /// Whether the allocatable units are proven by what runs on the node, whatever its status.
    pub fn is_proven(&self) -> bool {
        if self.is_in_its_turn() {
            return self.stack_proven();
        }
        // Of a third-party plugin only its allocatable resources are known.
        let third_party = self.want().is_some_and(|want| want.device_plugin.is_none());
        third_party || self.pod(Stage::DevicePlugin).is_some_and(PodFacts::running)
    }

    /// A node that only waits for its pods has what it had before.
    fn is_in_its_turn(&self) -> bool {
        self.rollout().is_some_and(|rollout| rollout.step != RolloutStep::Await)
    }

    /// An update of such a node disturbs no workload.
    pub fn was_failing(&self) -> bool {
        self.status().is_some_and(|status| !status.is_ready() && status.reason().is_some_and(Reason::is_failure))
    }

    /// Returns the stage's pod of the node's revision.
    pub fn pod(&self, stage: Stage) -> Option<&'w PodFacts> {
        let revision = self.have.get(stage)?;
        let of_revision = self.pods_of(stage).filter(|pod| pod.revision.as_ref() == Some(revision));
        // A terminating pod is returned only if there is no other.
        of_revision.min_by_key(|pod| pod.is_leaving())
    }

    /// Returns when the last pod or container was created or started.
    pub fn last_pod_activity(&self) -> Option<Timestamp> {
        let of_pod = |pod: &&PodFacts| {
            let started = pod.init.iter().chain(&pod.containers).filter_map(ContainerFacts::running_since);
            started.chain(pod.created).map(ObservedTime::local).max()
        };
        self.pods.iter().filter_map(of_pod).max()
    }

    /// Until then, past crashes of containers that are running again count as failures.
    pub fn crashes_count_until(&self) -> impl Iterator<Item = Timestamp> + use<'w, '_> {
        let containers = self.pods.iter().flat_map(|pod| pod.init.iter().chain(&pod.containers));
        let crashed = containers.filter(|container| container.last_failure.is_some());
        crashed.filter_map(ContainerFacts::running_since).map(|since| later(since.local(), GRACE))
    }

    /// Until then, a driver pod in its guard is expected to continue by itself: most guards exit immediately.
    pub fn guard_due(&self) -> Option<Timestamp> {
        let guard = self.pod(Stage::Driver)?.init.iter().find(|init| init.name == GUARD)?;
        Some(later(guard.running_since()?.local(), GUARD_TIMEOUT))
    }

    /// Whether a restarted driver container is waiting in its guard.
    pub fn guard_is_waiting(&self) -> bool {
        let reported = self.report.is_some_and(|report| report.driver.waits.is_some());
        reported && self.pod(Stage::Driver).is_some_and(|pod| pod.is_nvidia_driver() && pod.has_started())
    }

    /// Whether programs other than the operator's own pods use the driver. The probe cannot detect them while it uses the driver itself;
    /// pods are known from the API server.
    pub fn driver_in_use_by_others(&self) -> bool {
        let Some(report) = self.report.filter(|report| report.driver.in_use) else { return false };
        if self.gpu_pods.is_some_and(GpuPods::use_driver) {
            return true;
        }
        let holds = |pod: &&PodFacts| pod.uses_driver() || pod.role == Role::Validation;
        let answers = report.nvml.state == NvmlState::Answering;
        !answers && !self.pods.iter().copied().filter(holds).any(PodFacts::has_started)
    }

    /// Includes those that are terminating.
    pub fn pods_of(&self, stage: Stage) -> impl Iterator<Item = &'w PodFacts> + use<'w, '_> {
        self.pods.iter().copied().filter(move |pod| pod.role == Role::Operand(stage))
    }

    /// Whether the probe reports a loaded and installed driver: of the wanted version or, while an update is pending, of any.
    pub fn driver_proven(&self) -> bool {
        let (Some(choice), Some(report)) = (self.driver(), self.report) else {
            return false;
        };
        let Some(loaded) = report.driver.loaded.as_deref() else {
            return false;
        };
        (choice.fits(loaded) || self.driver_waits_for_its_turn())
            && report.driver.installed.iter().any(|found| found.root == choice.root() && found.version == loaded)
    }

    /// Whether the node has a driver of this operator that differs from the wanted one.
    pub fn driver_waits_for_its_turn(&self) -> bool {
        self.have.driver.is_some() && self.want().is_some_and(|want| want.driver != self.have.driver)
    }

    /// Whether every stage of the target revision runs. During an update, allocatable units may be those of the old revision.
    pub fn stack_proven(&self) -> bool {
        let runs = |stage| self.pod(stage).is_some_and(PodFacts::running);
        // While a node is being updated, its labels may name a revision to which it returns.
        let has_target = match self.rollout() {
            Some(rollout) => rollout.step == RolloutStep::Replace,
            None => self.want() == Some(&self.have),
        };
        has_target
            && self.driver_proven()
            && Stage::ALL.into_iter().all(|stage| self.have.get(stage).is_none() || runs(stage))
    }

    /// Whether the driver is loaded and installed and, during an update, its pod runs: another revision of the same version finds the old
    /// driver loaded.
    pub fn driver_done(&self) -> bool {
        let has_arrived = self.rollout().is_none() || self.have.driver.is_none();
        self.driver_proven() && (has_arrived || self.pod(Stage::Driver).is_some_and(PodFacts::running))
    }
}
