//! Throttling of policy status writes. Changes that a user may wait for are written within a second. Counts that change while a
//! large fleet is installed are written less and less often, because each write wakes all watchers.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{ClusterGpuPolicyStatus, PolicyName, Reason};

use crate::time::Uptime;

/// The minimum time between two writes of a policy's status.
const MIN_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum time between two writes if only counts change.
const MAX_INTERVAL: Duration = Duration::from_secs(30);
/// The delay of changes that do not justify a write of their own: they wait for one that does.
const LATER: Duration = Duration::from_hours(1);
/// After this long without a write, a change of counts is written at once again.
const QUIET: Duration = Duration::from_mins(1);

/// The time of the last write of each policy's status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct StatusThrottle {
    written: BTreeMap<PolicyName, Written>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Written {
    at: Uptime,
    gap: Duration,
}

impl StatusThrottle {
    /// Returns how long a policy's status must wait before it is written, or `None` to write it now.
    #[must_use]
    pub fn wait(
        &self,
        policy: &PolicyName,
        before: Option<&ClusterGpuPolicyStatus>,
        status: &ClusterGpuPolicyStatus,
        now: Uptime,
    ) -> Option<Duration> {
        if before.is_some_and(|before| !is_worth_it(before, status)) {
            return Some(LATER);
        }
        let last = self.written.get(policy)?;
        let gap = if before.is_none_or(|before| tells_more(before, status)) { MIN_INTERVAL } else { last.gap };
        gap.checked_sub(now.saturating_sub(last.at)).filter(|wait| !wait.is_zero())
    }

    /// Records a write.
    pub fn written(&mut self, policy: &PolicyName, now: Uptime) {
        let gap = match self.written.get(policy) {
            Some(last) if now.saturating_sub(last.at) < QUIET => (last.gap * 2).min(MAX_INTERVAL),
            _ => MIN_INTERVAL,
        };
        self.written.insert(policy.clone(), Written { at: now, gap });
    }

    /// Removes deleted policies.
    pub fn keep(&mut self, is_there: impl Fn(&PolicyName) -> bool) {
        self.written.retain(|policy, _| is_there(policy));
    }
}

/// Returns whether a status differs in more than the messages of nodes in progress, which are written with the next change.
fn is_worth_it(before: &ClusterGpuPolicyStatus, after: &ClusterGpuPolicyStatus) -> bool {
    let figures = |status: &ClusterGpuPolicyStatus| {
        let pools: Vec<_> = status
            .pools
            .iter()
            .map(|p| (p.nodes.clone(), p.gpus.clone(), p.driver_version.clone(), p.message.clone()))
            .collect();
        // The message on a node that is leaving names the pods that it waits for.
        let is_awaited = |reason: Reason| reason.is_failure() || reason.is_note() || reason == Reason::Leaving;
        let needy = status.attention.iter().filter(|node| node.reason().is_none_or(is_awaited));
        let needy: Vec<_> = needy.map(|node| (node.node.clone(), node.reason.clone(), node.message.clone())).collect();
        (status.nodes.clone(), status.gpus.clone(), status.overlaps.clone(), pools, needy)
    };
    tells_more(before, after) || figures(before) != figures(after)
}

/// Returns whether a status differs in what a user may wait for or act upon, and not only in counts and messages.
fn tells_more(before: &ClusterGpuPolicyStatus, after: &ClusterGpuPolicyStatus) -> bool {
    let words = |status: &ClusterGpuPolicyStatus| {
        let conditions = status.conditions.iter();
        let conditions: Vec<_> = conditions.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect();
        let pools: Vec<_> = status.pools.iter().map(|pool| (pool.name.clone(), pool.reason.clone())).collect();
        (status.observed_generation, conditions, pools)
    };
    words(before) != words(after)
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{
        policy_status::{Attention, NodeCounts},
        reason::Reason,
    };

    use super::*;

    fn status(generation: i64, ready: u32) -> ClusterGpuPolicyStatus {
        ClusterGpuPolicyStatus {
            observed_generation: Some(generation),
            nodes: NodeCounts { ready, ..NodeCounts::default() },
            ..ClusterGpuPolicyStatus::default()
        }
    }

    #[test]
    fn a_continuous_change_of_counts_is_written_less_and_less_often() {
        let (mut pace, start) = (StatusThrottle::default(), Uptime::ZERO);
        let mut writes = Vec::new();
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            if pace.wait(&"all".into(), Some(&status(1, 0)), &status(1, 1), now).is_none() {
                pace.written(&"all".into(), now);
                writes.push(second);
            }
        }
        assert_eq!(writes[..6], [0, 1, 3, 7, 15, 31]);
        assert!(writes.len() < 16, "{writes:?}");
    }

    #[test]
    fn changes_that_a_user_may_wait_for_are_written_within_a_second() {
        let (mut pace, start) = (StatusThrottle::default(), Uptime::ZERO);
        for _ in 0..10 {
            pace.written(&"all".into(), start);
        }
        let soon = start + Duration::from_millis(400);
        let wait = |status| pace.wait(&"all".into(), Some(&self::status(1, 0)), &status, soon);
        assert_eq!(wait(status(2, 0)), Some(Duration::from_millis(600)));
        assert!(wait(status(1, 1)) > Some(Duration::from_secs(20)));
        assert_eq!(pace.wait(&"other".into(), None, &status(1, 0), soon), None);
    }

    #[test]
    fn a_changed_message_of_a_node_in_progress_is_written_with_the_next_change() {
        let said = |reason: Reason, message: &str| {
            let attention = vec![Attention {
                node: "a".into(),
                pool: "p".into(),
                reason: reason.into(),
                message: message.into(),
                since: None,
            }];
            ClusterGpuPolicyStatus { attention, ..status(1, 0) }
        };
        let wait = |before, after| StatusThrottle::default().wait(&"all".into(), Some(&before), &after, Uptime::ZERO);
        assert_eq!(wait(said(Reason::PodStarting, "x"), said(Reason::DriverInstalling, "y")), Some(LATER));
        assert_eq!(wait(said(Reason::PodStarting, "x"), said(Reason::ImagePullFailed, "y")), None);
        assert_eq!(wait(said(Reason::PodStarting, "x"), status(1, 1)), None);
    }

    #[test]
    fn after_a_quiet_time_counts_are_written_at_once_again() {
        let (mut pace, start) = (StatusThrottle::default(), Uptime::ZERO);
        for _ in 0..10 {
            pace.written(&"all".into(), start);
        }
        let later = start + QUIET;
        pace.written(&"all".into(), later);
        let wait = pace.wait(&"all".into(), Some(&status(1, 0)), &status(1, 1), later);
        assert_eq!(wait, Some(MIN_INTERVAL));
    }
}
