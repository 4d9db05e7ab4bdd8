//! A policy's state in one word, for `kubectl get`: the most urgent of its conditions.

use gpu_operator_crd::{ConditionType, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Headline<'c> {
    /// `Rejected`, `Stalled`, `NotReady`, `RollingOut`, `Degraded`, `Ready`, or `Unknown` once the operator was uninstalled.
    pub status: &'static str,
    /// The condition behind it.
    pub condition: Option<&'c Condition>,
}

pub fn of(conditions: &[Condition]) -> Headline<'_> {
    let find = |kind: ConditionType, status: &str| {
        conditions.iter().find(|condition| condition.type_ == kind.as_str() && condition.status == status)
    };
    let rolling_out = || {
        find(ConditionType::Reconciling, "True")
            .filter(|condition| condition.reason == Reason::RollingOut.as_str())
            .map(|condition| ("RollingOut", condition))
    };
    let urgent = find(ConditionType::Accepted, "False")
        .map(|condition| ("Rejected", condition))
        .or_else(|| find(ConditionType::Stalled, "True").map(|condition| ("Stalled", condition)))
        .or_else(|| find(ConditionType::Ready, "False").map(|condition| ("NotReady", condition)))
        .or_else(rolling_out)
        .or_else(|| find(ConditionType::Degraded, "True").map(|condition| ("Degraded", condition)));
    // Nothing else is known then.
    let unknown = find(ConditionType::Ready, "Unknown").map(|condition| ("Unknown", condition));
    match unknown.or(urgent) {
        Some((status, condition)) => Headline { status, condition: Some(condition) },
        None => Headline { status: "Ready", condition: find(ConditionType::Ready, "True") },
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    fn condition(kind: ConditionType, is: bool, reason: Reason) -> Condition {
        Condition {
            type_: kind.as_str().to_owned(),
            status: if is { "True" } else { "False" }.to_owned(),
            reason: reason.as_str().to_owned(),
            message: format!("about {reason}"),
            observed_generation: None,
            last_transition_time: Time(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn the_most_urgent_condition_is_the_headline() {
        use ConditionType::{Accepted, Degraded, Ready, Reconciling, Stalled};
        // Each step makes one more condition unfavourable, from the least to the most urgent.
        let mut conditions = vec![
            condition(Ready, true, Reason::AllGpusAllocatable),
            condition(Reconciling, false, Reason::Settled),
            condition(Stalled, false, Reason::Settled),
            condition(Degraded, false, Reason::AllGpusHealthy),
            condition(Accepted, true, Reason::PolicyAccepted),
        ];
        let shown = |conditions: &[Condition]| {
            let Headline { status, condition } = of(conditions);
            (status, condition.map(|condition| condition.reason.clone()).unwrap_or_default())
        };
        assert_eq!(shown(&conditions), ("Ready", "AllGpusAllocatable".to_owned()));
        for (worse, status) in [
            (condition(Degraded, true, Reason::GpuDegraded), "Degraded"),
            (condition(Reconciling, true, Reason::RollingOut), "RollingOut"),
            (condition(Ready, false, Reason::NodesNotReady), "NotReady"),
            (condition(Stalled, true, Reason::RolloutHalted), "Stalled"),
            (condition(Accepted, false, Reason::InvalidPolicy), "Rejected"),
        ] {
            let reason = worse.reason.clone();
            conditions.retain(|condition| condition.type_ != worse.type_);
            conditions.push(worse);
            assert_eq!(shown(&conditions), (status, reason));
        }
        assert_eq!(of(&[]), Headline { status: "Ready", condition: None });
    }

    #[test]
    fn nodes_that_are_being_installed_are_not_a_rollout() {
        let conditions = [
            condition(ConditionType::Ready, true, Reason::MinimumNodesReady),
            condition(ConditionType::Reconciling, true, Reason::NodesNotReady),
        ];
        assert_eq!(of(&conditions).status, "Ready");
    }
}
