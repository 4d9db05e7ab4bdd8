//! Drivers that go. NVIDIA's container tries once to unload what it has loaded, as it is asked to end: if anything uses the
//! driver then, the container outlasts its grace period, is killed, and leaves the driver loaded. So what this operator
//! has that uses it goes first.

use std::time::Duration;

use gpu_operator_crd::{Report, keys, report::NvmlState};
use k8s_openapi::jiff::Timestamp;

use crate::{
    time::later,
    world::{NodeFacts, PodFacts, Word},
};

/// How long the device plugin and the probe are waited for. A pod that is stuck must not keep a policy for ever.
const LETTING_GO: Duration = Duration::from_secs(45);

/// Whether the probe has to keep off the driver: until the driver's container, which may be ending, is gone. A node that is
/// away ends none.
#[must_use]
pub fn needs_release(node: &NodeFacts, pods: &[&PodFacts]) -> bool {
    node.ready && pods.iter().any(|pod| pod.is_nvidia_driver())
}

/// Returns the group whose driver a node keeps for now, though nothing of this operator is to stay on it, and when that is
/// to be looked at again. Nothing is to stay since `since`.
#[must_use]
pub fn kept_by<'n>(
    node: &'n NodeFacts,
    pods: &[&PodFacts],
    report: Option<&Report>,
    since: Timestamp,
    now: Timestamp,
) -> Option<(&'n str, Timestamp)> {
    let group = node.labels.get(keys::DRIVER).map(Word::as_str)?;
    let until = later(since, LETTING_GO);
    let answers = report.is_some_and(|report| report.nvml.state == NvmlState::Answering);
    let is_held = answers || pods.iter().any(|pod| pod.holds_driver());
    (now < until && is_held && needs_release(node, pods)).then_some((group, until))
}
