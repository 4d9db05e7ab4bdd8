//! Nodes that no policy governs any more. A selector label that is lost for a moment, or a policy that is replaced, must not take the GPUs
//! from running pods: a node keeps its GPU stack for a grace period, in which the cause may be undone, and then until no pod uses a GPU.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNodeStatus, NodeName, Phase, Report, Revision,
    gpunode::StageRevisions,
    keys,
    policy::{DeletionPolicy, Stage},
    reason::Reason,
    report::NvmlState,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    clock::Clock,
    inventory::{KnownNode, UnmanagedNode, membership::Unmanaged},
    rollout::toolkit_restart,
    time::later,
    world::{Deletion, GpuPod, NodeFacts, PodFacts, Role, World, serves_gpus},
};

/// How long a node keeps everything.
const GRACE: Duration = Duration::from_mins(1);
/// How long the pods of the device plugin and of MPS are waited for: a stuck pod must not block the deletion of a policy.
const CLOSING_AT_MOST: Duration = Duration::from_secs(45);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving<'w> {
    /// The cause may be undone until then.
    InGrace(Timestamp),
    /// Its pods have not been listed in this pass.
    Unknown,
    /// Until these pods have ended.
    InUse(&'w [GpuPod]),
    /// No pod uses its GPUs. The device plugin is removed first, so that no further pod gets a GPU.
    Closing,
    Removing,
}

impl<'w> Leaving<'w> {
    /// `is_clean` is whether the Node has nothing of this operator.
    pub fn of(world: &'w World, unmanaged: &UnmanagedNode<'w>, is_clean: bool, clock: &Clock) -> Self {
        let KnownNode { node, gpu_node, report, have, .. } = &**unmanaged;
        let at_once = former_policy(world, unmanaged)
            .is_some_and(|policy| policy.spec.deletion_policy == Some(DeletionPolicy::Now));
        // Only a report proves that a node has no GPU: without a GpuNode, nothing may be known of its GPUs.
        let has_none = unmanaged.why == Unmanaged::NoGpu && report.is_some();
        if is_clean || has_none || at_once {
            return Self::Removing;
        }
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        if let Some(status) = status.filter(|status| !removal_has_begun(status)) {
            let until = later(since(status).unwrap_or_else(|| clock.now()), GRACE);
            if !clock.reached(until) {
                return Self::InGrace(until);
            }
        }
        if *have == StageRevisions::default() {
            return Self::Removing;
        }
        // They are listed again in each pass: a pod may have got a GPU before the device plugin was gone.
        clock.ask_again();
        match unmanaged.gpu_pods {
            None => Self::Unknown,
            Some(pods) if !pods.users.is_empty() => Self::InUse(&pods.users),
            Some(pods) => {
                let plugins = [Stage::DevicePlugin, Stage::Mps];
                let selected = plugins.into_iter().any(|stage| node.labels.contains_key(stage.key()));
                let exists = !pods.plugins.is_empty() || unmanaged.pods.iter().any(|pod| serves_gpus(pod));
                let began = status.filter(|status| removal_has_begun(status)).and_then(GpuNodeStatus::since);
                // Without a GpuNode nothing says since when: then a node that does not answer is not waited for.
                let waits =
                    began.map_or(gpu_node.is_some() || node.ready, |began| !clock.passed(began, CLOSING_AT_MOST));
                if selected || exists && waits { Self::Closing } else { Self::Removing }
            }
        }
    }

    pub fn stays(self) -> bool {
        matches!(self, Self::InGrace(_) | Self::Unknown | Self::InUse(_))
    }
}

pub fn former_policy<'w>(world: &'w World, unmanaged: &UnmanagedNode<'w>) -> Option<&'w ClusterGpuPolicy> {
    let name = unmanaged.gpu_node?.spec.policy.as_ref()?;
    Some(world.policies.get(name)?)
}

pub fn since(status: &GpuNodeStatus) -> Option<Timestamp> {
    status.since().filter(|_| status.reason() == Some(Reason::Leaving))
}

/// Whether the removal had been decided when the status was written.
fn removal_has_begun(status: &GpuNodeStatus) -> bool {
    status.phase == Phase::Unmanaged && status.reason().is_some_and(|reason| reason != Reason::Leaving)
}

// NVIDIA's driver container tries only once to unload the driver when it is terminated. If the driver is in use then, the container is
// killed after its grace period and leaves the driver loaded. So the pods of this operator that use it are removed first.

/// How long the device plugin and the probe are waited for.
const DRIVER_RELEASE_TIMEOUT: Duration = Duration::from_secs(45);

/// Until the driver's container is gone, the probe must not use the driver. On a node that is not Ready no container terminates.
pub fn needs_release(node: &NodeFacts, pods: &[&PodFacts]) -> bool {
    node.ready && pods.iter().any(|pod| pod.is_nvidia_driver())
}

/// Returns the driver that a node keeps for now. `since` is when it began to leave.
pub fn driver_kept_by(
    node: &NodeFacts,
    revision: Option<&Revision>,
    pods: &[&PodFacts],
    report: Option<&Report>,
    since: Timestamp,
    clock: &Clock,
) -> Option<Revision> {
    let answers = report.is_some_and(|report| report.nvml.state == NvmlState::Answering);
    let is_held = answers || pods.iter().any(|pod| pod.uses_driver());
    let waits = is_held && needs_release(node, pods) && !clock.passed(since, DRIVER_RELEASE_TIMEOUT);
    revision.filter(|_| waits).cloned()
}

// A toolkit that is being added to a runtime's configuration is removed only when that is complete. If NVIDIA's runtime is the default,
// the end of the toolkit's pod restarts the container runtime, so this happens on one node of a revision at a time.

/// How long a pod is waited for after it should have terminated.
const LATE: Duration = Duration::from_mins(2);

/// The toolkits that are being removed, which determine the next node.
#[derive(Debug)]
pub struct ToolkitRemovals<'w> {
    world: &'w World,
    /// Revisions with a terminating pod that is waited for; computed on demand.
    busy: Option<BTreeSet<Revision>>,
    /// Toolkits that are being added, by node; computed on demand.
    entering: Option<BTreeMap<&'w NodeName, &'w Revision>>,
    clock: &'w Clock,
}

impl<'w> ToolkitRemovals<'w> {
    pub fn of(world: &'w World, clock: &'w Clock) -> Self {
        Self { world, busy: None, entering: None, clock }
    }

    /// Returns the toolkit that a node keeps for now. On a node that is not Ready no pod terminates, so it
    /// keeps only a toolkit that is being added, which may be the cause.
    pub fn kept_by(&mut self, node: &'w NodeFacts, revision: Option<&Revision>) -> Option<Revision> {
        let revision = revision?.clone();
        // It is removed once it can remove itself from the configuration.
        let entering = self.entering.get_or_insert_with(|| toolkits_being_added(self.world, self.clock));
        if entering.get(&node.name) == Some(&&revision) {
            return Some(revision);
        }
        if !node.ready || !toolkit_restart::is_at_end(&self.world.daemon_sets, &revision) {
            return None;
        }
        let busy = self.busy.get_or_insert_with(|| toolkits_being_removed(self.world, self.clock));
        if busy.contains(&revision) {
            return Some(revision);
        }
        busy.insert(revision);
        None
    }
}

fn toolkits_being_added<'w>(world: &'w World, clock: &Clock) -> BTreeMap<&'w NodeName, &'w Revision> {
    let toolkits = world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit));
    let entering = toolkits.filter(|pod| toolkit_restart::is_entering(&world.daemon_sets, pod, clock));
    entering.filter_map(|pod| Some((&pod.node, pod.revision.as_ref()?))).collect()
}

fn toolkits_being_removed(world: &World, clock: &Clock) -> BTreeSet<Revision> {
    let toolkits = world.pods.values().filter(|pod| pod.role == Role::Operand(Stage::Toolkit));
    toolkits.filter_map(|pod| restarts_runtime(world, pod, clock)).cloned().collect()
}

/// Returns the revision of a pod whose start or end restarts the node's runtime, as long as that is waited for.
fn restarts_runtime<'w>(world: &'w World, pod: &'w PodFacts, clock: &Clock) -> Option<&'w Revision> {
    let revision = pod.revision.as_ref()?;
    let node = world.nodes.get(&pod.node)?;
    if let Some(Deletion { since, grace }) = &pod.deletion {
        return (!clock.passed(since.local(), *grace + LATE)).then_some(revision);
    }
    let called_for = node.labels.get(keys::TOOLKIT).is_some_and(|named| *revision == named.as_str());
    // The DaemonSet controller is about to delete it, or it restarts the runtime while it starts.
    let busy = !called_for && node.ready || toolkit_restart::is_entering(&world.daemon_sets, pod, clock);
    busy.then_some(revision)
}
