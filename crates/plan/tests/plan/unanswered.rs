//! The write that begins the update of a node is not answered: until it can no longer be carried out, no other node begins.

use gpu_operator_crd::{NodeName, reason::Reason};
use gpu_operator_plan::{
    Plan,
    carry::{Class, Failure, LoopState},
    time::Uptime,
    world::Concern,
};

use crate::sim::Sim;

const NODES: [&str; 2] = ["a", "b"];

/// Two settled nodes, after the driver of their policy changed and the write that begins the update of `a` was not answered.
fn unanswered(carry: &mut LoopState) -> Sim {
    let mut sim = Sim::settled_fleet("{}", &NODES);
    sim.apply_policy("all", "{defaults: {driver: {version: 580.105.08}}}");
    let begins = |plan: &Plan| plan.clone().take_writes().iter().flatten().any(|write| write.begins_an_update());
    let mut plan = sim.plan();
    while !begins(&plan) {
        assert!(sim.step_with(plan), "no update begins");
        plan = sim.plan();
    }
    let stages = plan.take_writes();
    let begins: Vec<_> = stages.iter().flatten().filter(|write| write.begins_an_update()).collect();
    let [begin] = begins[..] else { panic!("{} updates begin", begins.len()) };
    assert_eq!(begin.concerns(), Concern::Node("a".into()));
    for write in stages.iter().flatten() {
        if write.begins_an_update() {
            let failure = Failure { class: Class::Unreachable, message: "no answer".into() };
            carry.settled(write, Err(failure), Uptime::ZERO);
        } else {
            assert!(sim.write(write).is_ok());
        }
    }
    sim
}

fn moving(sim: &Sim) -> Vec<&str> {
    NODES.into_iter().filter(|node| sim.is_moving(NodeName::from(*node))).collect()
}

#[test]
fn another_node_begins_only_when_the_write_has_expired() {
    let mut carry = LoopState::default();
    let mut sim = unanswered(&mut carry);
    // So that `a` is not the next one any more.
    sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    for second in [1, 30, 74] {
        sim.pass(&mut carry, Uptime::from_secs(second));
        assert_eq!(moving(&sim), [""; 0], "after {second} s");
    }
    let status = sim.status("b");
    assert_eq!(status.reason, Some(Reason::RolloutPending.into()));
    let message = "the API server has not answered whether the update of node a of this pool has begun";
    assert!(format!("{status:?}").contains(message), "{status:#?}");
    assert_eq!(carry.next(Uptime::from_secs(74)), Some(std::time::Duration::from_secs(1)));
    sim.pass(&mut carry, Uptime::from_secs(75));
    assert_eq!(moving(&sim), ["b"]);
}

#[test]
fn the_same_node_may_begin_again() {
    let mut carry = LoopState::default();
    let mut sim = unanswered(&mut carry);
    let again = carry.next(Uptime::ZERO).expect("a time").min(Uptime::from_secs(74));
    sim.pass(&mut carry, again);
    assert_eq!(moving(&sim), ["a"]);
}
