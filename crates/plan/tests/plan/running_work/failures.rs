//! What counts as a failure of a rollout.

use gpu_operator_crd::{ConditionType, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::output::{body::Body, write::Write};
use k8s_openapi::jiff::SignedDuration;

use super::{Event, Fleet, History, Law, NEW, Policy, event::Pod, history::ledger};
use crate::{law::Lawful, sim::Sim};

/// A pool goes back, or is halted, only because of a node that has failed for good: in its turn, in the soak after it, or in its first
/// installation. A reboot is no failure, nor is one crash, a probe that is late, or anything on a node whose update has not begun. A second
/// unexpected boot halts the pool.
pub const ONLY_FAILURES_COUNT: Law = Law { at_write: only_failures_count, ..Law::NONE };

fn only_failures_count(history: &History, sim: &Sim, write: &Write) -> Lawful {
    if !history.failed.is_empty() {
        return Ok(());
    }
    match &write.body {
        Body::Ledger(after) => {
            let before = sim.policies.get(&write.target.name.as_str().into()).map(ledger).unwrap_or_default();
            let was_back = |pool| before.iter().any(|known| known.pool == pool && !known.rolled_back.is_empty());
            let mut pools = after.pools.iter().filter(|pool| !pool.rolled_back.is_empty());
            match pools.find(|pool| !was_back(pool.pool.clone())) {
                Some(pool) => {
                    Err(format!("pool {} goes back, and no node has failed: {}", pool.pool, pool.rolled_back))
                }
                None => Ok(()),
            }
        }
        Body::PolicyStatus(status) => {
            let is_halted = status.conditions.iter().find(|condition| {
                condition.type_ == ConditionType::Stalled.as_str()
                    && condition.status == "True"
                    && condition.reason == Reason::RolloutHalted.as_str()
            });
            let boots: u32 = history.nodes.values().map(|past| past.boots).sum();
            let is_known = boots > 1 || !sim.broken_drivers.is_empty();
            match is_halted.filter(|_| !is_known) {
                Some(condition) => Err(format!("a rollout is halted, and no node has failed: {}", condition.message)),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

/// At most two nodes get a driver that reboots its machine.
pub const REBOOTS_HALT: Law = Law { at_write: reboots_halt, ..Law::NONE };

fn reboots_halt(history: &History, sim: &Sim, write: &Write) -> Lawful {
    let (Body::Labels(labels), Some((driver, _))) = (&write.body, history.reboots) else { return Ok(()) };
    let gets = labels.labels.get(keys::DRIVER).and_then(|revision| history.version(revision)) == Some(driver);
    let has = |node: &&gpu_operator_plan::world::NodeFacts| history.version_of(node) == Some(driver);
    let others: Vec<_> = sim.nodes.values().filter(has).map(|node| node.name.as_str()).collect();
    let others: Vec<_> = others.into_iter().filter(|node| *node != write.target.name).collect();
    let boots: Vec<_> = history.rebooted.iter().map(gpu_operator_crd::NodeName::as_str).collect();
    if gets && others.len() > 1 {
        return Err(format!(
            "{} gets driver {driver}, which {others:?} have and which rebooted {boots:?}",
            write.target.name
        ));
    }
    Ok(())
}

/// A pod that keeps the rollout from being complete.
const PENDING: Event = Event::PodStarts("d", Pod::Plain);

fn rolling(mode: &'static str) -> Policy {
    Policy { mode, rolls_back: true, has_canary: false, ..Policy::default() }
}

/// Returns a fleet one of whose nodes is still pending, because a pod uses its GPUs.
fn pending(policy: Policy, laws: &'static [Law]) -> Fleet {
    let mut fleet = Fleet::settled(policy, 4, laws);
    let events = [(PENDING, 5), (Event::Driver(NEW), 1500)];
    fleet.go(&events).expect("a lawful rollout");
    fleet
}

#[test]
fn a_pool_goes_back_only_for_failures_in_a_turn_or_soak() {
    for stage in [Stage::DevicePlugin, Stage::Toolkit] {
        let mut fleet = pending(rolling("Leave"), &[ONLY_FAILURES_COUNT]);
        let events = [(Event::Crashes("a", stage), 60), (Event::Reboots("a"), 300), (Event::Breaks("b", stage), 600)];
        assert_eq!(fleet.go(&events), Ok(()), "long after the updates");
    }
}

#[test]
fn one_crash_in_a_turn_or_soak_is_no_failure() {
    for (stage, after) in [(Stage::DevicePlugin, 90), (Stage::Driver, 90), (Stage::DevicePlugin, 7), (Stage::Driver, 4)]
    {
        let mut fleet = Fleet::settled(rolling("Leave"), 4, &[ONLY_FAILURES_COUNT]);
        let events = [(PENDING, 5), (Event::Driver(NEW), after), (Event::Crashes("a", stage), 300)];
        assert_eq!(fleet.go(&events), Ok(()));
    }
}

#[test]
fn two_crashes_within_a_minute_are_a_failure() {
    for (crashes, reason) in [(1, "Settled"), (2, "RolledBack")] {
        let mut fleet = Fleet::settled(rolling("Leave"), 4, &[ONLY_FAILURES_COUNT]);
        let crash = (Event::Crashes("a", Stage::DevicePlugin), 4);
        let events = [(PENDING, 5), (Event::Driver(NEW), 90)].into_iter().chain(std::iter::repeat_n(crash, crashes));
        assert_eq!(fleet.go(&events.collect::<Vec<_>>()), Ok(()));
        assert_eq!(fleet.sim.condition("all", "Stalled").1, reason, "after {crashes} crashes");
    }
}

#[test]
fn a_node_that_awaits_its_pods_has_begun_nothing() {
    let mut fleet = Fleet::settled(rolling("Await"), 4, &[ONLY_FAILURES_COUNT]);
    let events = [
        (Event::PodStarts("a", Pod::Plain), 5),
        (Event::Driver(NEW), 30),
        (Event::Breaks("a", Stage::DevicePlugin), 120),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_probe_that_reports_late_is_no_failure_of_a_driver() {
    let mut fleet = Fleet::settled(rolling("Leave"), 4, &[ONLY_FAILURES_COUNT]);
    let events = [
        (PENDING, 5),
        (Event::Driver(NEW), 60),
        (Event::IsMute("a", true), 1),
        (Event::Reboots("a"), 150),
        (Event::Heals("a"), 300),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_webhook_that_is_down_for_minutes_is_no_failure() {
    let mut fleet = Fleet::settled(rolling("Leave"), 4, &[ONLY_FAILURES_COUNT]);
    let events = [(Event::Driver(NEW), 5), (Event::WebhookDown(true), 600), (Event::WebhookDown(false), 1800)];
    assert_eq!(fleet.go(&events), Ok(()));
    assert!(fleet.sim.nodes.values().all(|node| fleet.history.version_of(node) == Some(NEW)));
}

#[test]
fn a_node_that_an_autoscaler_takes_away_fails_nothing() {
    let policy = Policy { tolerates_all: false, ..rolling("Leave") };
    let mut fleet = pending(policy, &[ONLY_FAILURES_COUNT]);
    assert_eq!(fleet.go(&[(Event::IsTakenAway("d"), 60), (Event::Leaves("d"), 300)]), Ok(()));
}

#[test]
fn at_most_two_nodes_get_a_driver_that_reboots_them() {
    for after in [1, 3] {
        for (mode, max_parallel) in [("Leave", 1), ("Evict", 1), ("Leave", 2)] {
            let mut fleet = Fleet::settled(Policy { max_parallel, ..rolling(mode) }, 4, &[REBOOTS_HALT]);
            fleet.history.reboots = Some((NEW, SignedDuration::from_secs(after)));
            let end = fleet.go(&[(Event::Driver(NEW), 3600)]);
            assert_eq!(end, Ok(()), "{mode}, {max_parallel} at a time, {after} s after the driver is loaded");
        }
    }
}
