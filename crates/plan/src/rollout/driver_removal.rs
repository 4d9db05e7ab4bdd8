//! Removal of drivers. NVIDIA's driver container tries once to unload the driver when it is terminated. If the driver is in use
//! then, the container exceeds its grace period, is killed, and leaves the driver loaded. So this operator's pods that use the
//! driver are removed first.

use std::time::Duration;

use gpu_operator_crd::{Report, Revision, report::NvmlState};
use k8s_openapi::jiff::Timestamp;

use crate::{
    time::later,
    world::{NodeFacts, PodFacts},
};

/// How long the device plugin and the probe are waited for: a stuck pod must not block the deletion of a policy.
const LETTING_GO: Duration = Duration::from_secs(45);

/// Returns whether the probe must not use the driver: until the driver's container, which may be terminating, is gone. On a
/// node that is not Ready no container terminates.
pub fn needs_release(node: &NodeFacts, pods: &[&PodFacts]) -> bool {
    node.ready && pods.iter().any(|pod| pod.is_nvidia_driver())
}

/// Returns the group whose driver a node that has it keeps for now, although this operator's components are being removed from the
/// node since `since`, and the time of the next check.
pub fn kept_by(
    node: &NodeFacts,
    group: Option<&Revision>,
    pods: &[&PodFacts],
    report: Option<&Report>,
    since: Timestamp,
    now: Timestamp,
) -> Option<(Revision, Timestamp)> {
    let until = later(since, LETTING_GO);
    let answers = report.is_some_and(|report| report.nvml.state == NvmlState::Answering);
    let is_held = answers || pods.iter().any(|pod| pod.holds_driver());
    let group = group.filter(|_| now < until && is_held && needs_release(node, pods))?;
    Some((group.clone(), until))
}
