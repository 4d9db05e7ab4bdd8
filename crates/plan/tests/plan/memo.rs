//! The memo of settled nodes. That a plan with it is the same as one without it is asserted for every plan of all tests.

use crate::sim::Sim;

const NODES: [&str; 3] = ["a", "b", "c"];

/// Returns how many nodes are remembered once the plan has been made.
fn remembered(sim: &Sim) -> usize {
    sim.plan();
    sim.remembered()
}

#[test]
fn settled_nodes_are_remembered_until_they_change() {
    let mut sim = Sim::settled_fleet("{}", &NODES);
    sim.join_plain("cpu");
    assert_eq!(remembered(&sim), 4, "also a node that no policy concerns");
    sim.node_mut("b").allocatable = 7.into();
    assert_eq!(remembered(&sim), 3);
    sim.node_mut("b").allocatable = 8.into();
    assert_eq!(remembered(&sim), 4);
    sim.leave(&"c".into());
    assert_eq!(remembered(&sim), 3);
}

#[test]
fn a_changed_policy_is_a_reason_to_plan_all_nodes() {
    let sim = Sim::settled_fleet("{}", &NODES);
    assert_eq!(remembered(&sim), 3);
    let sim = sim.policy("all", "{nodeLabels: [{key: example.com/model}]}");
    assert_eq!(remembered(&sim), 0);
}
