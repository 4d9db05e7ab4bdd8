//! How soon the change of a status is worth a write.

use gpu_operator_crd::{ClusterGpuPolicyStatus, GpuNodeStatus, Phase, gpunode::GpuCounts, reason::Reason};

use super::write::Urgency;
use crate::world::OwnCondition;

pub fn of_policy(before: Option<&ClusterGpuPolicyStatus>, after: &ClusterGpuPolicyStatus) -> Urgency {
    match before {
        Some(before) if verdicts(before) == verdicts(after) => {
            if figures(before) == figures(after) {
                Urgency::Detail
            } else {
                Urgency::Progress
            }
        }
        _ => Urgency::Prompt,
    }
}

/// What a user may wait for or act upon, and what a node's taint waits for.
fn verdicts(status: &ClusterGpuPolicyStatus) -> impl PartialEq {
    let conditions = status.conditions.iter();
    let conditions: Vec<_> = conditions.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect();
    let pools: Vec<_> = status.pools.iter().map(|pool| (pool.name.clone(), pool.reason.clone())).collect();
    (status.observed_generation, conditions, pools, status.published_keys.clone())
}

/// The counts, and the messages except those on nodes in progress.
fn figures(status: &ClusterGpuPolicyStatus) -> impl PartialEq {
    let pools = status.pools.iter();
    let pools: Vec<_> =
        pools.map(|p| (p.nodes.clone(), p.gpus.clone(), p.driver_version.clone(), p.message.clone())).collect();
    // The message on a node that is leaving names the pods that it waits for.
    let is_awaited = |reason: Reason| reason.is_failure() || reason.is_note() || reason == Reason::Leaving;
    let needy = status.attention.iter().filter(|node| node.reason().is_none_or(is_awaited));
    let needy: Vec<_> = needy.map(|node| (node.node.clone(), node.reason.clone(), node.message.clone())).collect();
    (status.nodes.clone(), status.gpus.clone(), status.rollout.clone(), status.overlaps.clone(), pools, needy)
}

/// What a node passes through is shown once it has lasted: an installation of a few seconds needs one write.
pub fn of_node(before: &GpuNodeStatus, after: &GpuNodeStatus) -> Urgency {
    let problems = |status: &GpuNodeStatus| (status.gpus.unhealthy, status.gpus.degraded);
    let both_pass = passes(before) && passes(after);
    if !both_pass || problems(before) != problems(after) || !stores_the_same(before, after) {
        return Urgency::Prompt;
    }
    let state = |status: &GpuNodeStatus| (status.phase, status.reason(), status.gpus.allocatable);
    // Otherwise only messages differ, for example by the current container of a pod.
    if state(before) == state(after) { Urgency::Detail } else { Urgency::Progress }
}

/// Whether it is in progress without a problem: also a node that has no status yet, or no policy.
fn passes(status: &GpuNodeStatus) -> bool {
    let is_passing = |reason| reason == Reason::NoPolicy || is_transient(status.phase, reason);
    status.reason.is_none() || status.reason().is_some_and(is_passing)
}

pub fn of_condition(before: Option<&OwnCondition>, after: Option<&OwnCondition>) -> Urgency {
    let (Some(before), Some(after)) = (before, after) else { return Urgency::Prompt };
    let transient = |condition: &OwnCondition| {
        let reason: Option<Reason> = condition.reason.parse().ok();
        condition.status == "False" && reason.is_some_and(is_underway)
    };
    match transient(before) && transient(after) {
        false => Urgency::Prompt,
        true if before.reason != after.reason => Urgency::Progress,
        true => Urgency::Detail,
    }
}

/// Without a problem.
pub fn is_transient(phase: Phase, reason: Reason) -> bool {
    is_underway(reason) && !matches!(phase, Phase::Ready | Phase::Unmanaged)
}

fn is_underway(reason: Reason) -> bool {
    !reason.is_failure() && !reason.counts_apart() && !reason.is_away()
}

/// Facts that are stored nowhere else and that later plans depend on are written soon, and so is a deadline that the policy has changed.
/// The first model and the first count of GPUs are those of the report beside it.
fn stores_the_same(one: &GpuNodeStatus, other: &GpuNodeStatus) -> bool {
    let seen = |gpus: &GpuCounts| (gpus.most_seen, gpus.seen_device_ids.clone(), gpus.seen_on.clone());
    let since = |status: &GpuNodeStatus| status.progressing_since.clone();
    (since(one) != since(other) || one.deadline == other.deadline)
        && one.missing_image == other.missing_image
        && one.validation == other.validation
        && one.foreign == other.foreign
        && one.host_runtime == other.host_runtime
        && one.cdi_disabled == other.cdi_disabled
        && one.past_resource_names == other.past_resource_names
        && (one.model.is_none() || one.model == other.model)
        && (one.gpus.most_seen.is_none() || seen(&one.gpus) == seen(&other.gpus))
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::policy_status::{Attention, NodeCounts};

    use super::*;

    #[test]
    fn the_message_on_a_node_in_progress_is_a_detail() {
        let status = |reason: Reason, message: &str| ClusterGpuPolicyStatus {
            attention: vec![Attention {
                node: "a".into(),
                pool: "p".into(),
                reason: reason.into(),
                message: message.into(),
                since: None,
            }],
            ..ClusterGpuPolicyStatus::default()
        };
        let between = |reason, message| of_policy(Some(&status(reason, "one")), &status(reason, message));
        assert_eq!(between(Reason::DriverInstalling, "two"), Urgency::Detail);
        assert_eq!(between(Reason::DriverInUse, "two"), Urgency::Progress);
        assert_eq!(between(Reason::Leaving, "two"), Urgency::Progress);
    }

    #[test]
    fn counts_are_progress_and_verdicts_are_prompt() {
        let status = |generation, ready| ClusterGpuPolicyStatus {
            observed_generation: Some(generation),
            nodes: NodeCounts { ready, ..NodeCounts::default() },
            ..ClusterGpuPolicyStatus::default()
        };
        assert_eq!(of_policy(Some(&status(1, 0)), &status(1, 1)), Urgency::Progress);
        assert_eq!(of_policy(Some(&status(1, 0)), &status(2, 0)), Urgency::Prompt);
        assert_eq!(of_policy(None, &status(1, 0)), Urgency::Prompt);
    }

    #[test]
    fn failures_are_prompt_and_another_phase_is_progress() {
        let status = |phase, reason: Reason, unhealthy| GpuNodeStatus {
            phase,
            reason: Some(reason.into()),
            gpus: GpuCounts { unhealthy, ..GpuCounts::default() },
            ..GpuNodeStatus::default()
        };
        let installing = status(Phase::Driver, Reason::DriverInstalling, 0);
        let then = |after: &GpuNodeStatus| of_node(&installing, after);
        assert_eq!(then(&status(Phase::Toolkit, Reason::ToolkitInstalling, 0)), Urgency::Progress);
        assert_eq!(then(&status(Phase::Driver, Reason::DriverInUse, 0)), Urgency::Prompt);
        assert_eq!(then(&status(Phase::Driver, Reason::DriverInstalling, 1)), Urgency::Prompt);
        assert_eq!(then(&GpuNodeStatus { message: "other".into(), ..installing.clone() }), Urgency::Detail);
        let of_model =
            |model: &str| GpuNodeStatus { model: Some(model.into()), ..status(Phase::Unmanaged, Reason::NoPolicy, 0) };
        assert_eq!(of_node(&of_model("a"), &of_model("b")), Urgency::Prompt);
    }
    #[test]
    fn a_condition_is_as_urgent_as_the_status_of_a_node() {
        let condition = |status: &str, reason: Reason, message: &str| OwnCondition {
            status: status.into(),
            reason: reason.as_str().into(),
            message: message.into(),
            since: None,
        };
        let installing = condition("False", Reason::DriverInstalling, "one");
        let then = |after: &OwnCondition| of_condition(Some(&installing), Some(after));
        assert_eq!(then(&condition("False", Reason::DriverInstalling, "two")), Urgency::Detail);
        assert_eq!(then(&condition("False", Reason::ToolkitInstalling, "one")), Urgency::Progress);
        assert_eq!(then(&condition("False", Reason::DriverInUse, "one")), Urgency::Prompt);
        assert_eq!(then(&condition("True", Reason::AllGpusAllocatable, "one")), Urgency::Prompt);
        assert_eq!(then(&condition("Unknown", Reason::NodeNotReady, "one")), Urgency::Prompt);
        assert_eq!(of_condition(None, Some(&installing)), Urgency::Prompt);
        assert_eq!(of_condition(Some(&installing), None), Urgency::Prompt);
    }
}
