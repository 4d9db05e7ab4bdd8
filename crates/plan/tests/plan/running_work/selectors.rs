//! A label that selects a node may be lost for a moment.

use gpu_operator_crd::policy::Stage;
use gpu_operator_plan::output::{body::Body, write::Write};

use super::{Event, Fleet, History, Law, NEW, OLD, Policy, policy::POOLED};
use crate::{law::Lawful, sim::Sim};

/// A label that selects a node for its policy or its pool, and that is lost for less than a minute, changes none of the node's groups.
/// The minute of a pool's label ends early if the operator, which keeps it in memory, is restarted.
pub const A_MINUTES_GRACE: Law = Law { at_write: a_minutes_grace, ..Law::NONE };

fn a_minutes_grace(history: &History, sim: &Sim, write: &Write) -> Lawful {
    let name = write.target.name.as_str().into();
    let (Some(node), Some(past)) = (sim.nodes.get(&name), history.nodes.get(&name)) else { return Ok(()) };
    let is_of_pool = past.lost.contains_key(POOLED.0) || !node.labels.contains_key(POOLED.0);
    let excused = history.edited.max(history.restarted.filter(|_| is_of_pool));
    let Some((key, lost)) = past.lost.iter().next().filter(|(_, lost)| excused < Some(**lost)) else { return Ok(()) };
    let why = match &write.body {
        Body::Labels(labels) => {
            let changed = Stage::ALL.into_iter().find(|stage| {
                let has = node.labels.get(stage.key()).map(gpu_operator_common::interned::Interned::as_str);
                has != labels.labels.get(stage.key()).map(String::as_str)
            });
            changed.map(|stage| format!("its {stage:?} changes"))
        }
        Body::Spec(after) if after.spec.rollout.is_some() => Some("its update begins".into()),
        _ => None,
    };
    match why {
        Some(why) => Err(format!("{name} lost label {key} at {lost}, and {why}")),
        None => Ok(()),
    }
}

#[test]
fn a_pools_label_that_is_lost_for_seconds_changes_nothing() {
    for mode in ["Leave", "Await", "Evict"] {
        let mut fleet = Fleet::settled(Policy { mode, driver: NEW, ..Policy::default() }, 3, &[A_MINUTES_GRACE]);
        let events = [(Event::Pooled("a", false), 30), (Event::Pooled("a", true), 300)];
        assert_eq!(fleet.go(&events), Ok(()), "{mode}");
    }
}

#[test]
fn a_policys_label_that_is_lost_for_seconds_changes_nothing() {
    let mut fleet = Fleet::settled(Policy { driver: NEW, ..Policy::default() }, 3, &[A_MINUTES_GRACE]);
    let events = [(Event::AllSelected(false), 30), (Event::AllSelected(true), 300)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn labels_at_the_operators_restart_count() {
    let mut fleet = Fleet::settled(Policy { driver: NEW, ..Policy::default() }, 3, &[A_MINUTES_GRACE]);
    let restart = Event::Recommends(OLD);
    for (events, version) in [
        ([(restart, 5), (Event::Pooled("a", false), 30)], NEW),
        ([(Event::Pooled("a", true), 0), (restart, 30)], NEW),
        ([(Event::AllSelected(false), 5), (restart, 30)], NEW),
        ([(Event::AllSelected(true), 60), (restart, 0)], NEW),
        ([(Event::Pooled("a", false), 5), (restart, 30)], OLD),
    ] {
        assert_eq!(fleet.go(&events), Ok(()));
        assert_eq!(fleet.history.version_of(fleet.sim.node("a")), Some(version), "after {events:?}");
    }
}

#[test]
fn a_node_without_a_policy_for_a_minute_leaves() {
    let mut fleet = Fleet::settled(Policy { driver: NEW, ..Policy::default() }, 3, &[A_MINUTES_GRACE]);
    let events = [(Event::AllSelected(false), 20), (Event::Pooled("a", false), 50), (Event::AllSelected(true), 60)];
    assert_eq!(fleet.go(&events), Ok(()));
    assert_eq!(fleet.history.version_of(fleet.sim.node("a")), Some(OLD));
}
