//! Random rollouts: in every mode and with every answer to failures, from a fleet that is complete, halted or rolled back.

use proptest::{collection::vec, prelude::*, sample::select};
use test_support::random::config;

use super::{Event, Fleet, LAWS, NEW, OLD, Policy, event::event};
use crate::law::Lawful;

/// How a rollout begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    Complete,
    /// Its first node has failed, so that it is halted or rolled back.
    Failed,
}

fn policy() -> impl Strategy<Value = Policy> {
    let mode = select(vec!["Leave", "Await", "Evict", "Evict"]);
    let gpu_pods = select(vec!["", ", timeout: 30m", ", barePods: Evict, emptyDir: Evict"]);
    let windows = select(vec!["[]", "[]", "[{start: '00:00', duration: 1h}, {start: '02:00', duration: 3h}]"]);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    (mode, gpu_pods, windows, flags, 1..3_u32, 1..3_u32).prop_map(
        |(mode, gpu_pods, windows, (has_canary, rolls_back, tolerates_all), max_failures, max_parallel)| Policy {
            mode,
            gpu_pods,
            windows,
            has_canary,
            max_failures,
            max_parallel,
            rolls_back,
            tolerates_all,
            ..Policy::default()
        },
    )
}

fn run(policy: Policy, start: Start, events: &[(Event, u32)]) -> Lawful {
    let mut fleet = Fleet::settled(policy, 4, LAWS);
    if start == Start::Failed {
        fleet.go(&[(Event::Broken(NEW, true), 0), (Event::Driver(NEW), 2400), (Event::Broken(NEW, false), 0)])?;
    }
    fleet.go(events)?;
    let end = [(Event::Broken(NEW, false), 60), (Event::Driver(OLD), 600)];
    fleet.go(&end)
}

proptest! {
    #![proptest_config(config(24))]

    #[test]
    fn in_random_rollouts_running_work_is_not_disturbed(
        policy in policy(),
        start in select(vec![Start::Complete, Start::Complete, Start::Failed]),
        events in vec(event(), 1..20),
    ) {
        let end = run(policy.clone(), start, &events);
        prop_assert!(end.is_ok(), "{}\nof {policy:?}, {start:?}, {events:?}", end.unwrap_err());
    }
}
