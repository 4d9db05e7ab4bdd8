//! Pace: how often a policy's status is written. What somebody may wait for is written within a second; counts that run
//! along while a large fleet installs are written ever less often, because each write wakes everybody who watches.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use gpu_operator_crd::ClusterGpuPolicyStatus;

/// Between two writes of one policy's status, at least.
const LEAST: Duration = Duration::from_secs(1);
/// Between two writes of mere counts, at most.
const MOST: Duration = Duration::from_secs(30);
/// What is not worth a write of its own waits for one that is.
const LATER: Duration = Duration::from_hours(1);
/// After so long without a write counts are news again.
const QUIET: Duration = Duration::from_mins(1);

/// When each policy's status was written last.
#[derive(Debug, Default)]
pub struct Pace {
    written: BTreeMap<String, Written>,
}

#[derive(Debug)]
struct Written {
    at: Instant,
    gap: Duration,
}

impl Pace {
    /// How long a policy's status has to wait before it may be written; nothing means now.
    #[must_use]
    pub fn wait(
        &self,
        policy: &str,
        before: Option<&ClusterGpuPolicyStatus>,
        status: &ClusterGpuPolicyStatus,
        now: Instant,
    ) -> Option<Duration> {
        if before.is_some_and(|before| !is_worth_it(before, status)) {
            return Some(LATER);
        }
        let last = self.written.get(policy)?;
        let gap = if before.is_none_or(|before| tells_more(before, status)) { LEAST } else { last.gap };
        gap.checked_sub(now.duration_since(last.at)).filter(|wait| !wait.is_zero())
    }

    /// Takes note of a write.
    pub fn written(&mut self, policy: &str, now: Instant) {
        let gap = match self.written.get(policy) {
            Some(last) if now.duration_since(last.at) < QUIET => (last.gap * 2).min(MOST),
            _ => LEAST,
        };
        self.written.insert(policy.to_owned(), Written { at: now, gap });
    }

    /// Forgets policies that are gone.
    pub fn keep(&mut self, is_there: impl Fn(&str) -> bool) {
        self.written.retain(|policy, _| is_there(policy));
    }
}

/// Whether a status differs in more than in the words for nodes that are on their way, which go along with the next write.
fn is_worth_it(before: &ClusterGpuPolicyStatus, after: &ClusterGpuPolicyStatus) -> bool {
    let figures = |status: &ClusterGpuPolicyStatus| {
        let pools: Vec<_> = status
            .pools
            .iter()
            .map(|p| (p.nodes.clone(), p.gpus.clone(), p.driver_version.clone(), p.message.clone()))
            .collect();
        let needy = status.attention.iter().filter(|node| node.reason.is_failure() || node.reason.is_note());
        let needy: Vec<_> = needy.map(|node| (node.node.clone(), node.reason, node.message.clone())).collect();
        (status.nodes.clone(), status.gpus.clone(), status.overlaps.clone(), pools, needy)
    };
    tells_more(before, after) || figures(before) != figures(after)
}

/// Whether a status differs in what somebody may wait for or act upon, and not in counts and wording alone.
fn tells_more(before: &ClusterGpuPolicyStatus, after: &ClusterGpuPolicyStatus) -> bool {
    let words = |status: &ClusterGpuPolicyStatus| {
        let conditions = status.conditions.iter();
        let conditions: Vec<_> = conditions.map(|c| (c.type_.clone(), c.status.clone(), c.reason.clone())).collect();
        let pools: Vec<_> = status.pools.iter().map(|pool| (pool.name.clone(), pool.reason)).collect();
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
    fn counts_that_run_along_are_written_ever_less_often() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        let mut writes = Vec::new();
        for second in 0..300 {
            let now = start + Duration::from_secs(second);
            if pace.wait("all", Some(&status(1, 0)), &status(1, 1), now).is_none() {
                pace.written("all", now);
                writes.push(second);
            }
        }
        assert_eq!(writes[..6], [0, 1, 3, 7, 15, 31]);
        assert!(writes.len() < 16, "{writes:?}");
    }

    #[test]
    fn what_somebody_may_wait_for_is_written_within_a_second() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for _ in 0..10 {
            pace.written("all", start);
        }
        let soon = start + Duration::from_millis(400);
        let wait = |status| pace.wait("all", Some(&self::status(1, 0)), &status, soon);
        assert_eq!(wait(status(2, 0)), Some(Duration::from_millis(600)));
        assert!(wait(status(1, 1)) > Some(Duration::from_secs(20)));
        assert_eq!(pace.wait("other", None, &status(1, 0), soon), None);
    }

    #[test]
    fn other_words_for_a_node_on_its_way_go_along_with_the_next_write() {
        let said = |reason: Reason, message: &str| {
            let attention =
                vec![Attention { node: "a".into(), pool: "p".into(), reason, message: message.into(), since: None }];
            ClusterGpuPolicyStatus { attention, ..status(1, 0) }
        };
        let wait = |before, after| Pace::default().wait("all", Some(&before), &after, Instant::now());
        assert_eq!(wait(said(Reason::PodStarting, "x"), said(Reason::DriverInstalling, "y")), Some(LATER));
        assert_eq!(wait(said(Reason::PodStarting, "x"), said(Reason::ImagePullFailed, "y")), None);
        assert_eq!(wait(said(Reason::PodStarting, "x"), status(1, 1)), None);
    }

    #[test]
    fn after_a_quiet_time_counts_are_news_again() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for _ in 0..10 {
            pace.written("all", start);
        }
        let later = start + QUIET;
        pace.written("all", later);
        let wait = pace.wait("all", Some(&status(1, 0)), &status(1, 1), later);
        assert_eq!(wait, Some(LEAST));
    }
}
