//! What stopped a rollout is remembered.

use gpu_operator_crd::policy::Stage;
use gpu_operator_plan::output::write::Write;

use super::{
    Event, Fleet, History, Law, NEW, Policy,
    event::{MPS, NODES},
    history::{NewDriver, pool_of},
    policy::{DEFAULT, NEXT},
};
use crate::{law::Lawful, sim::Sim};

/// A driver that stopped its pool does not come to further nodes by itself: only a user begins it again, or the recovery of a node that
/// failed.
pub const WHAT_STOPPED_STAYS_STOPPED: Law = Law { at_write: what_stopped_stays_stopped, ..Law::NONE };

fn what_stopped_stays_stopped(history: &History, sim: &Sim, write: &Write) -> Lawful {
    let Some(NewDriver { node, gets, began, .. }) = NewDriver::of(history, sim, write) else { return Ok(()) };
    let pool = pool_of(node);
    let Some(stopped) = history.stopped.get(&pool).filter(|stopped| stopped.version == gets) else { return Ok(()) };
    let has_begun = began.is_some_and(|began| began <= stopped.since);
    let is_first = !history.proven.iter().any(|(of, proven)| *of == pool && proven != gets);
    if has_begun || is_first {
        return Ok(());
    }
    Err(format!("{} gets driver {gets}, which stopped its pool at {}", node.name, stopped.since))
}

/// Returns a fleet whose pool was stopped by its driver, which would work now.
fn stopped(rolls_back: bool) -> Fleet {
    let mut fleet = Fleet::settled(Policy { rolls_back, ..Policy::default() }, 4, &[WHAT_STOPPED_STAYS_STOPPED]);
    fleet.go(&[(Event::Broken(NEW, true), 0), (Event::Driver(NEW), 3000)]).expect("a lawful rollout");
    assert!(fleet.history.stopped.contains_key("p"), "{:#?}", fleet.sim.policies);
    if rolls_back {
        fleet.go(&[(Event::Broken(NEW, false), 600)]).expect("a rollout that stays back");
    }
    fleet
}

#[test]
fn a_selector_that_is_lost_and_comes_back_begins_nothing() {
    for rolls_back in [true, false] {
        let mut fleet = stopped(rolls_back);
        let events = [(Event::AllSelected(false), 10), (Event::AllSelected(true), 900)];
        assert_eq!(fleet.go(&events), Ok(()), "rolls back: {rolls_back}");
    }
}

#[test]
fn other_settings_count_for_a_pool_that_no_policy_selects() {
    let mut fleet = stopped(true);
    let change = [(Event::AllSelected(false), 0), (Event::Plugin(MPS), 0), (Event::Leaves("a"), 1)];
    assert_eq!(fleet.go(&change), Ok(()));
    assert_eq!(fleet.go(&[(Event::AllJoin, 60)]), Ok(()));
    assert_eq!(fleet.history.version_of(fleet.sim.node("a")), Some(NEW));
}

#[test]
fn a_pool_that_was_empty_does_not_begin_again() {
    for rolls_back in [true, false] {
        let mut fleet = stopped(rolls_back);
        assert_eq!(fleet.go(&[(Event::AllLeave, 600), (Event::AllJoin, 900)]), Ok(()), "rolls back: {rolls_back}");
    }
}

#[test]
fn a_pool_whose_nodes_are_all_unknown_does_not_begin_again() {
    for rolls_back in [true, false] {
        let mut fleet = stopped(rolls_back);
        let reboots = NODES.into_iter().flat_map(|node| [(Event::IsMute(node, true), 0), (Event::Reboots(node), 0)]);
        let heals = NODES.into_iter().map(|node| (Event::IsMute(node, false), 0));
        let events: Vec<_> = reboots.chain([(Event::More(false), 120)]).chain(heals).collect();
        assert_eq!(fleet.go(&events), Ok(()));
        assert_eq!(fleet.run(900), Ok(()), "rolls back: {rolls_back}");
    }
}

#[test]
fn another_default_driver_begins_after_one_that_stopped() {
    for rolls_back in [true, false] {
        let policy = Policy { driver: DEFAULT, rolls_back, ..Policy::default() };
        let mut fleet = Fleet::settled(policy, 4, &[WHAT_STOPPED_STAYS_STOPPED]);
        let events = [(Event::Broken(NEW, true), 0), (Event::Recommends(NEW), 3000)];
        assert_eq!(fleet.go(&events), Ok(()));
        assert!(fleet.history.stopped.contains_key("p"), "{:#?}", fleet.sim.policies);
        assert_eq!(fleet.go(&[(Event::Recommends(NEXT), 2400)]), Ok(()));
        assert!(fleet.sim.nodes.values().all(|node| fleet.history.version_of(node) == Some(NEXT)), "{rolls_back}");
    }
}

#[test]
fn a_node_that_breaks_in_a_stopped_pool_keeps_its_driver() {
    for rolls_back in [true, false] {
        let mut fleet = stopped(rolls_back);
        assert_eq!(fleet.go(&[(Event::Breaks("d", Stage::DevicePlugin), 900)]), Ok(()), "rolls back: {rolls_back}");
    }
}

#[test]
fn an_edit_for_another_card_does_not_begin_a_rollout_again() {
    for rolls_back in [true, false] {
        let mut fleet = stopped(rolls_back);
        assert_eq!(fleet.go(&[(Event::More(true), 900)]), Ok(()), "rolls back: {rolls_back}");
    }
}

#[test]
fn a_user_begins_a_stopped_rollout_again() {
    let mut fleet = stopped(true);
    assert_eq!(fleet.go(&[(Event::Retry, 1800)]), Ok(()));
    assert!(fleet.sim.nodes.values().all(|node| fleet.history.version_of(node) == Some(NEW)));
}
