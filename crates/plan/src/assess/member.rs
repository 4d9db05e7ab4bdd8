//! A member: one GPU node of a policy with everything the later steps want to know of it.

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, GpuNodeStatus,
    gpunode::{Groups, Rollout},
    keys,
    policy::{Health, Pool, Stage},
    reason::Reason,
    report::{NvmlState, Report},
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use crate::{
    assess::health::{self, NodeHealth},
    container_names::GUARD,
    desired::{
        driver::choice::DriverChoice,
        effective_spec,
        expected_resources::Promise,
        node::{Desired, DesiredNode},
        toolkit::choice::ToolkitChoice,
        variant::Variant,
    },
    inventory::{
        GovernedNode,
        external_stack::Foreign,
        gpus::{self, Discovery},
        pools::GoverningPool,
    },
    revision,
    settings::{AT_GUARD, GRACE, REPORT_GRACE},
    time::later,
    world::{ContainerFacts, NodeFacts, Offer, PodFacts, Role, TaintFact, Word, World, is_gpu},
};

/// One GPU node of a policy.
#[derive(Clone, Debug)]
pub struct Member<'w> {
    /// The Node.
    pub node: &'w NodeFacts,
    /// Its GpuNode, if there is one yet.
    pub gpu_node: Option<&'w GpuNode>,
    /// What its GPUs are.
    pub discovery: Discovery<'w>,
    /// The policy.
    pub policy: &'w ClusterGpuPolicy,
    /// The names of the other policies that select the node.
    pub others: Vec<&'w str>,
    /// The pool's name.
    pub pool: String,
    /// The named pool, unless the pool is an implicit one.
    pub named_pool: Option<&'w Pool>,
    /// What keeps operands off a node with these taints, if anything: the first that the policy does not tolerate.
    pub untolerated: Option<&'w TaintFact>,
    /// What the policy says of health here.
    pub health_policy: Health,
    /// How its GPUs are.
    pub health: NodeHealth,
    /// What the policy wants on the node.
    pub desired: Desired,
    /// The groups that the node's labels name.
    pub have: Groups,
    /// How many GPUs the node should have.
    pub expected: Option<u32>,
    /// What its device plugin makes of each.
    pub offer: Offer,
    /// What it should offer of them.
    pub promise: Option<Promise>,
    /// What of its GPU stack is somebody else's.
    pub external: Foreign,
    /// The pods that run on its GPUs, where that was asked.
    pub gpu_holders: Option<&'w [String]>,
    /// The pods of ours on the node.
    pub pods: Vec<&'w PodFacts>,
}

impl<'w> Member<'w> {
    /// Returns a node as a member of its pool, with the other policies that select it.
    #[must_use]
    pub fn of(desired: DesiredNode<'w>, world: &'w World, now: Timestamp) -> Self {
        let DesiredNode {
            governed,
            pool: GoverningPool { name: pool, named: named_pool },
            have,
            external,
            desired,
            expected,
            offer,
        } = desired;
        let GovernedNode { node, gpu_node, pods, discovery, policy, others } = governed;
        let report = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()?.report.as_ref());
        let tolerated = |taint: &&TaintFact| {
            let tolerations = policy.spec.defaults.tolerations.as_ref();
            tolerations.is_none_or(|tolerations| tolerations.iter().any(|toleration| taint.tolerated_by(toleration)))
        };
        let others_taints = node.taints.iter().filter(|taint| taint.key != keys::UNHEALTHY_TAINT);
        let untolerated = others_taints.into_iter().find(|taint| !tolerated(taint));
        let missing = match report {
            Some(report) => expected.unwrap_or_default().saturating_sub(gpus::on_bus(Some(report))),
            None => 0,
        };
        let health = health::of(report, probe_pod(&pods), missing, now);
        let promise = expected.map(|expected| Promise::of(expected, health.unhealthy, report, &offer));
        Self {
            node,
            gpu_node,
            discovery,
            policy,
            others,
            pool,
            named_pool,
            untolerated,
            health_policy: effective_spec::health(policy, named_pool),
            health,
            desired,
            have,
            expected,
            offer,
            promise,
            external,
            gpu_holders: world.gpu_holders.get(&node.name).map(Vec::as_slice),
            pods,
        }
    }

    /// What the operator last wrote of the node.
    #[must_use]
    pub fn status(&self) -> Option<&'w GpuNodeStatus> {
        self.gpu_node?.status.as_ref()
    }

    /// What the probe said.
    #[must_use]
    pub fn report(&self) -> Option<&'w Report> {
        self.status()?.report.as_ref()
    }

    /// The move that the node is in.
    #[must_use]
    pub fn rollout(&self) -> Option<&'w Rollout> {
        self.gpu_node?.spec.rollout.as_ref()
    }

    /// The groups that the policy wants, where it can be carried out.
    #[must_use]
    pub fn want(&self) -> Option<Groups> {
        self.desired.variant().map(Variant::groups)
    }

    /// The driver that the policy wants, where it can be carried out.
    #[must_use]
    pub fn driver(&self) -> Option<&DriverChoice> {
        self.desired.variant().map(|variant| &variant.key.driver)
    }

    /// What the policy wants of the node's container runtime, where it can be carried out.
    #[must_use]
    pub fn toolkit(&self) -> Option<&ToolkitChoice> {
        self.desired.variant().map(|variant| &variant.key.toolkit)
    }

    /// The model's name, once it is known.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        self.discovery.model.as_deref()
    }

    /// Since when a node that has not reported is waited for: since it, its policy and its probe have all been there.
    #[must_use]
    pub fn report_awaited_since(&self) -> Option<Timestamp> {
        let probe = self.probe_pod().and_then(|pod| pod.created);
        let all_there = [self.node.created, self.policy.creation_timestamp().map(|time| time.0), probe];
        all_there.into_iter().flatten().max()
    }

    /// Until when it is waited for.
    #[must_use]
    pub fn report_due(&self) -> Option<Timestamp> {
        self.report_awaited_since().map(|since| later(since, REPORT_GRACE))
    }

    /// Whether nothing is to be written of the node yet: its probe is about to tell of it, and what is written before would
    /// be written again.
    #[must_use]
    pub fn is_awaited(&self, now: Timestamp) -> bool {
        self.gpu_node.is_none() && self.report_due().is_some_and(|due| now < due)
    }

    /// GPUs that the bus shows.
    #[must_use]
    pub fn on_bus(&self) -> u32 {
        gpus::on_bus(self.report())
    }

    /// Where the GPUs were that the bus does not show any more.
    #[must_use]
    pub fn missing_from(&self) -> Vec<&str> {
        let there = |address: &str| {
            self.report().is_some_and(|report| report.gpus.iter().any(|gpu| gpu.pci_address == address))
        };
        self.discovery.seen.at.iter().map(String::as_str).filter(|address| !there(address)).collect()
    }

    /// What the scheduler can give out, in its own units: a GPU that four pods share is four.
    #[must_use]
    pub fn allocatable(&self) -> u32 {
        let there = &self.node.allocatable;
        // By another name than NVIDIA's, if somebody's plugin has one.
        let promised = self.promise.iter().flat_map(|promise| promise.whole.keys());
        let others = promised.filter(|name| !is_gpu(name)).map(|name| there.amount(name));
        there.total() + others.sum::<u32>()
    }

    /// A resource by which a pod can ask for a GPU of its, or a part of one.
    #[must_use]
    pub fn offered(&self) -> &str {
        let there = &self.node.allocatable;
        let mut promised = self.promise.iter().flat_map(|promise| promise.whole.keys());
        let other = promised.find(|name| !is_gpu(name) && there.amount(name) > 0).map(AsRef::as_ref);
        other.or(there.first_gpu().map(Word::as_str)).unwrap_or(keys::GPU_RESOURCE)
    }

    /// What it should be able to give out, in the same units.
    #[must_use]
    pub fn promised(&self) -> Option<u32> {
        self.promise.as_ref().map(Promise::units)
    }

    /// Whether the scheduler can give out all that is promised, but for unhealthy GPUs, as long as the policy can do without
    /// those.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let enough = |expected: u32| {
            expected.saturating_sub(self.health.unhealthy) >= health::required(&self.health_policy, expected)
        };
        // GPUs in MIG mode without a MIG device promise nothing, which no node becomes ready by.
        let kept = |promise: &Promise| promise.units() > 0 && promise.lacks(&self.node.allocatable).is_none();
        self.node.ready
            && !self.node.deleting
            && self.expected.is_some_and(enough)
            && self.promise.as_ref().is_some_and(kept)
    }

    /// Whether the allocatable that is there can be believed. Kubelet takes some seconds to take back the GPUs of a plugin
    /// that is gone, so a node becomes ready by a plugin that runs, and in the middle of a move by the whole new stack;
    /// once ready, allocatable alone tells.
    #[must_use]
    pub fn is_believable(&self) -> bool {
        if self.rollout().is_some() {
            return self.stack_proven();
        }
        // Of somebody else's plugin there is nothing to see but what it offers.
        let not_ours = self.want().is_some_and(|want| want.device_plugin.is_none());
        not_ours
            || self.status().is_some_and(GpuNodeStatus::is_ready)
            || self.pod(Stage::DevicePlugin).is_some_and(PodFacts::running)
    }

    /// Whether the last word on the node was a failure: moving it then takes nothing from anybody.
    #[must_use]
    pub fn was_failing(&self) -> bool {
        self.status().is_some_and(|status| !status.is_ready() && status.reason.is_some_and(Reason::is_failure))
    }

    /// The stage's pod that belongs to the group the node's label names.
    #[must_use]
    pub fn pod(&self, stage: Stage) -> Option<&'w PodFacts> {
        let group = revision::group(&self.have, stage)?;
        let of_group = self.pods_of(stage).filter(|pod| pod.group.as_deref() == Some(group));
        // A pod on its way out counts only where there is no other.
        of_group.min_by_key(|pod| pod.is_leaving())
    }

    /// When the last pod or container of ours on the node was made or started.
    #[must_use]
    pub fn last_stir(&self) -> Option<Timestamp> {
        let of_pod = |pod: &&PodFacts| {
            let started = pod.init.iter().chain(&pod.containers).filter_map(ContainerFacts::running_since);
            started.max().max(pod.created)
        };
        self.pods.iter().filter_map(of_pod).max()
    }

    /// Until when the last crashes of containers that run again count against their pods.
    pub fn crashes_count_until(&self) -> impl Iterator<Item = Timestamp> + use<'w, '_> {
        let containers = self.pods.iter().flat_map(|pod| pod.init.iter().chain(&pod.containers));
        let crashed = containers.filter(|container| container.last_failure.is_some());
        crashed.filter_map(ContainerFacts::running_since).map(|since| later(since, GRACE))
    }

    /// Until when a driver's pod that waits at its guard is given to go on by itself: most only pass by.
    #[must_use]
    pub fn driver_waits_until(&self) -> Option<Timestamp> {
        let guard = self.pod(Stage::Driver)?.init.iter().find(|init| init.name == GUARD)?;
        Some(later(guard.running_since()?, AT_GUARD))
    }

    /// Whether the driver's container waits at its guard before it begins: again, after it has died.
    #[must_use]
    pub fn driver_waits(&self) -> bool {
        let says_so = self.report().is_some_and(|report| report.driver.waits.is_some());
        says_so && self.pod(Stage::Driver).is_some_and(|pod| pod.is_nvidia_driver() && pod.has_started())
    }

    /// Whether the driver is in use by others than the operator's own pods. While the probe holds the driver, it cannot tell
    /// whether anybody else does; of pods the API server knows.
    #[must_use]
    pub fn is_held_by_others(&self) -> bool {
        let Some(report) = self.report().filter(|report| report.driver.in_use) else { return false };
        if self.gpu_holders.is_some_and(|pods| !pods.is_empty()) {
            return true;
        }
        let holds = |pod: &&PodFacts| pod.holds_driver() || pod.role == Role::Validation;
        let answers = report.nvml.state == NvmlState::Answering;
        !answers && !self.pods.iter().copied().filter(holds).any(PodFacts::has_started)
    }

    /// All pods of a stage on the node, those on their way out included.
    pub fn pods_of(&self, stage: Stage) -> impl Iterator<Item = &'w PodFacts> + use<'w, '_> {
        self.pods.iter().copied().filter(move |pod| pod.role == Role::Operand(stage))
    }

    /// The probe's pod.
    #[must_use]
    pub fn probe_pod(&self) -> Option<&'w PodFacts> {
        probe_pod(&self.pods)
    }

    /// Whether the node's driver is loaded and in place, by the probe's report: the version that the policy wants, or,
    /// while a new revision waits for its turn, whichever the node has.
    #[must_use]
    pub fn driver_proven(&self) -> bool {
        let (Some(choice), Some(report)) = (self.driver(), self.report()) else {
            return false;
        };
        let Some(loaded) = report.driver.loaded.as_deref() else {
            return false;
        };
        (choice.fits(loaded) || self.driver_waits_for_its_turn())
            && report.driver.installed.iter().any(|found| found.root == choice.root() && found.version == loaded)
    }

    /// Whether the node has a driver of ours that is not the one the policy wants now.
    #[must_use]
    pub fn driver_waits_for_its_turn(&self) -> bool {
        self.have.driver.is_some() && self.want().is_some_and(|want| want.driver != self.have.driver)
    }

    /// Whether every stage of the wanted revision is proven: for a node in the middle of a move, allocatable alone
    /// may still be that of the old one.
    #[must_use]
    pub fn stack_proven(&self) -> bool {
        let runs = |stage| self.pod(stage).is_some_and(PodFacts::running);
        self.want().is_some_and(|want| want == self.have)
            && self.driver_proven()
            && Stage::ALL.into_iter().all(|stage| revision::group(&self.have, stage).is_none() || runs(stage))
    }

    /// Whether the driver is past doubt: loaded and in place, and in the middle of a move also by a pod that runs. Another
    /// revision of the same version finds the old one loaded.
    #[must_use]
    pub fn driver_done(&self) -> bool {
        let moved = self.rollout().is_none() || self.have.driver.is_none();
        self.driver_proven() && (moved || self.pod(Stage::Driver).is_some_and(PodFacts::running))
    }
}

/// The probe's pod among those of a node; one on its way out only where there is no other.
#[must_use]
pub fn probe_pod<'w>(pods: &[&'w PodFacts]) -> Option<&'w PodFacts> {
    pods.iter().copied().filter(|pod| pod.role == Role::Probe).min_by_key(|pod| pod.is_leaving())
}
