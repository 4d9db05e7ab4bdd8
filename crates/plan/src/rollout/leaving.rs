//! Nodes that leave: a policy governed them, and none does any more. A selector label that is lost for a moment, or a policy that
//! is replaced by another, must not take the GPUs from running pods: a node keeps its GPU stack for a grace period, in which the
//! cause may be undone, and then until no pod uses a GPU.

use std::time::Duration;

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNodeStatus, Phase,
    gpunode::StageRevisions,
    policy::{DeletionPolicy, Stage},
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    inventory::{KnownNode, UnmanagedNode, membership::Unmanaged},
    settings::ASK_AGAIN,
    time::later,
    world::{GpuPod, World, offers_gpus},
};

/// How long a node keeps everything after it is no longer governed.
const GRACE: Duration = Duration::from_mins(1);
/// How long the pods of the device plugin and of MPS are waited for: a stuck pod must not block the deletion of a policy.
const CLOSING_AT_MOST: Duration = Duration::from_secs(45);

/// The progress of a node that no policy governs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaving<'w> {
    /// It keeps everything until this time, because the cause may be undone.
    InGrace(Timestamp),
    /// It keeps everything: a CRD is of another version than the operator, so it is not known whether its policy selects it.
    Held,
    /// It keeps everything: its pods have not been listed in this pass.
    Unknown,
    /// It keeps everything until these pods have ended.
    InUse(&'w [GpuPod]),
    /// No pod uses its GPUs. The device plugin is removed before everything else, so that no further pod gets a GPU.
    Closing,
    /// Everything is removed.
    Removing,
}

impl<'w> Leaving<'w> {
    /// Returns the progress of a node. `is_clean` is whether the Node has nothing of this operator.
    pub fn of(world: &'w World, unmanaged: &UnmanagedNode<'w>, is_clean: bool, now: Timestamp) -> Self {
        let KnownNode { node, gpu_node, report, have, .. } = &**unmanaged;
        let at_once = former_policy(world, unmanaged)
            .is_some_and(|policy| policy.spec.deletion_policy == Some(DeletionPolicy::Now));
        // Only a report proves that a node has no GPU: without a GpuNode, nothing may be known of its GPUs.
        let has_none = unmanaged.why == Unmanaged::NoGpu && report.is_some();
        if is_clean || has_none {
            return Self::Removing;
        }
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        if is_held(world, unmanaged) && !status.is_some_and(removal_has_begun) {
            return Self::Held;
        }
        if at_once {
            return Self::Removing;
        }
        if let Some(status) = status.filter(|status| !removal_has_begun(status)) {
            let until = later(since(status).unwrap_or(now), GRACE);
            if now < until {
                return Self::InGrace(until);
            }
        }
        if *have == StageRevisions::default() {
            return Self::Removing;
        }
        // They are listed again in each pass: a pod may have got a GPU before the device plugin was gone.
        match world.gpu_pods.get(&node.name) {
            None => Self::Unknown,
            Some(pods) if !pods.users.is_empty() => Self::InUse(&pods.users),
            Some(pods) => {
                let plugins = [Stage::DevicePlugin, Stage::Mps];
                let selected = plugins.into_iter().any(|stage| node.labels.contains_key(stage.key()));
                let exists = !pods.plugins.is_empty() || unmanaged.pods.iter().any(|pod| offers_gpus(pod));
                let began = status.filter(|status| removal_has_begun(status)).and_then(GpuNodeStatus::since);
                // Without a GpuNode nothing says since when: then a node that does not answer is not waited for.
                let waits = began.map_or(gpu_node.is_some() || node.ready, |began| now < later(began, CLOSING_AT_MOST));
                if selected || exists && waits { Self::Closing } else { Self::Removing }
            }
        }
    }

    /// Returns whether the node keeps everything for now.
    pub fn stays(self) -> bool {
        matches!(self, Self::InGrace(_) | Self::Held | Self::Unknown | Self::InUse(_))
    }

    /// Returns when its progress has to be determined again.
    pub fn check_again(self, now: Timestamp) -> Option<Timestamp> {
        match self {
            Self::InGrace(until) => Some(until),
            Self::Unknown | Self::InUse(_) | Self::Closing => Some(later(now, ASK_AGAIN)),
            Self::Held | Self::Removing => None,
        }
    }
}

/// Returns the policy that governed a node, if it still exists.
pub fn former_policy<'w>(world: &'w World, unmanaged: &UnmanagedNode<'w>) -> Option<&'w ClusterGpuPolicy> {
    let name = unmanaged.gpu_node?.spec.policy.as_ref()?;
    Some(world.policies.get(name)?)
}

/// Returns whether a node may have left its policy only because the CRD of policies is of another version than the operator. A policy that
/// is being deleted, and a label that excludes the node, are the wish of a user.
fn is_held(world: &World, unmanaged: &UnmanagedNode<'_>) -> bool {
    let exists = |policy: &ClusterGpuPolicy| policy.metadata.deletion_timestamp.is_none();
    world.other_schema.is_some()
        && unmanaged.why == Unmanaged::NoPolicy
        && former_policy(world, unmanaged).is_some_and(exists)
}

/// Returns since when a node has been leaving, if it is.
pub fn since(status: &GpuNodeStatus) -> Option<Timestamp> {
    status.since().filter(|_| status.reason() == Some(Reason::Leaving))
}

/// Returns whether the removal of the GPU stack had been decided when a status was written.
fn removal_has_begun(status: &GpuNodeStatus) -> bool {
    status.phase == Phase::Unmanaged && status.reason().is_some_and(|reason| reason != Reason::Leaving)
}
