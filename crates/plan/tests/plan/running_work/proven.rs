//! While a pool is stopped or its canary is not over, no node gets what no node of the pool has proven.

use gpu_operator_plan::output::{body::Body, write::Write};

use super::{
    Event, Fleet, History, Law, NEW, Policy,
    history::{NewDriver, Past, ledger, pool_of, wanted},
    policy::{DEFAULT, NEXT, THIRD},
};
use crate::{law::Lawful, sim::Sim};

/// A node that joins gets a driver that a node of its pool has proven, while the pool is halted, rolled back, paused or in its canary. No
/// other node moves to a driver before a canary node has worked with it for the soak.
pub const ONLY_PROVEN_DRIVERS: Law = Law { at_write: only_proven_drivers, ..Law::NONE };

fn only_proven_drivers(history: &History, sim: &Sim, write: &Write) -> Lawful {
    let name = write.target.name.as_str().into();
    let (Some(node), Some(policy)) = (sim.nodes.get(&name), sim.policies.get(&"all".into())) else { return Ok(()) };
    let spec = sim.gpu_nodes.get(&name).map(|gpu_node| &gpu_node.spec);
    let (pool, strategy) = (pool_of(node), &policy.spec.rollout);
    let is_proven = |version: &str| history.proven.contains(&(pool.clone(), version.to_owned()));
    if let Some(NewDriver { gets, had_one: false, .. }) = NewDriver::of(history, sim, write) {
        let is_first = !history.proven.iter().any(|(of, version)| *of == pool && version != gets);
        let works = |past: &Past| past.ready_with.as_deref() == Some(gets);
        let works_somewhere = || history.nodes.values().any(works);
        let (why, is_known) = if history.stopped.get(&pool).is_some_and(|stopped| stopped.version == gets) {
            ("stopped", works_somewhere())
        } else if strategy.paused == Some(true) {
            ("paused", works_somewhere())
        } else {
            ("in its canary", strategy.canary.is_none())
        };
        if !is_first && !is_known && !is_proven(gets) {
            return Err(format!(
                "{name} joins with driver {gets}, which no node of its pool has proven; the pool is {why}"
            ));
        }
    }
    let Body::Spec(after) = &write.body else { return Ok(()) };
    let begins = after.spec.rollout.is_some() && spec.is_some_and(|spec| spec.rollout.is_none());
    let is_canary = after.spec.last_update.as_ref().is_none_or(|last_update| last_update.canary);
    let is_back = ledger(policy).iter().any(|known| !known.rolled_back.is_empty());
    let to = wanted(sim, policy, &pool).unwrap_or_default();
    if !begins || is_canary || is_back || strategy.canary.is_none() || is_proven(to) {
        return Ok(());
    }
    Err(format!("{name} begins its update to driver {to}, with which no canary node has worked for the soak"))
}

fn fleet(policy: Policy) -> Fleet {
    Fleet::settled(policy, 3, &[ONLY_PROVEN_DRIVERS])
}

#[test]
fn who_joins_a_halted_pool_gets_what_it_has_proven() {
    let mut fleet = fleet(Policy::default());
    let events = [(Event::Broken(NEW, true), 0), (Event::Driver(NEW), 3000), (Event::Joins("d"), 600)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn who_joins_a_paused_pool_gets_what_it_has_proven() {
    let mut fleet = fleet(Policy::default());
    let events = [(Event::Paused(true), 0), (Event::Driver(NEW), 60), (Event::Joins("d"), 600)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn who_joins_during_a_soak_gets_what_its_pool_has_proven() {
    let mut fleet = fleet(Policy { has_canary: true, ..Policy::default() });
    assert_eq!(fleet.go(&[(Event::Driver(NEW), 120), (Event::Joins("d"), 300)]), Ok(()));
}

#[test]
fn a_canary_that_failed_proves_nothing() {
    let mut fleet = fleet(Policy { has_canary: true, max_failures: 2, ..Policy::default() });
    assert_eq!(fleet.go(&[(Event::Broken(NEW, true), 0), (Event::Driver(NEW), 7200)]), Ok(()));
}

#[test]
fn a_canary_with_another_default_driver_proves_nothing() {
    let mut fleet = fleet(Policy { driver: DEFAULT, has_canary: true, ..Policy::default() });
    assert_eq!(fleet.go(&[(Event::Recommends(NEW), 300), (Event::Recommends(NEXT), 2400)]), Ok(()));
    assert!(fleet.sim.nodes.values().all(|node| fleet.history.version_of(node) == Some(NEXT)));
}

#[test]
fn a_canary_that_was_given_back_proves_nothing() {
    let mut fleet = fleet(Policy { has_canary: true, rolls_back: true, max_failures: 2, ..Policy::default() });
    let events = [
        (Event::Broken(NEW, true), 0),
        (Event::Driver(NEW), 2400),
        (Event::Broken(NEW, false), 60),
        (Event::Retry, 600),
    ];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_canary_that_keeps_an_earlier_revision_proves_nothing() {
    let mut fleet = fleet(Policy { has_canary: true, ..Policy::default() });
    let events = [(Event::Driver(THIRD), 300), (Event::PodComesLate("a"), 0), (Event::Driver(NEW), 3000)];
    assert_eq!(fleet.go(&events), Ok(()));
    let versions: Vec<_> = fleet.sim.nodes.values().map(|node| fleet.history.version_of(node)).collect();
    assert_eq!(versions, [Some(THIRD), Some(NEW), Some(NEW)]);
}

#[test]
fn a_canary_that_works_is_followed() {
    let mut fleet = fleet(Policy { has_canary: true, ..Policy::default() });
    assert_eq!(fleet.go(&[(Event::Driver(NEW), 900), (Event::Joins("d"), 300)]), Ok(()));
    assert!(fleet.sim.nodes.values().all(|node| fleet.history.version_of(node) == Some(NEW)));
}
