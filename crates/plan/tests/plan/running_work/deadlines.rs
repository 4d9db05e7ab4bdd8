//! No slot outlives its deadline.

use k8s_openapi::jiff::SignedDuration;
use kube::ResourceExt;

use super::{Event, Fleet, History, Law, NEW, Policy, event::Pod};
use crate::{law::Lawful, sim::Sim};

/// How long after the deadline a slot may still be there: the operator has to notice, and may be asked only every five minutes.
const SLACK: SignedDuration = SignedDuration::from_mins(7);

/// No slot is kept beyond the deadline of its update, whatever policy governs the node by then.
pub const NO_SLOT_BEYOND_ITS_DEADLINE: Law = Law { after_step: no_slot_beyond_its_deadline, ..Law::NONE };

fn no_slot_beyond_its_deadline(_: &History, sim: &Sim) -> Lawful {
    let slots =
        sim.policies.values().filter_map(|policy| policy.status.as_ref()).flat_map(|status| &status.rollout.slots);
    for slot in slots {
        let gpu_node = sim.gpu_nodes.get(&slot.node).filter(|gpu_node| gpu_node.uid().as_ref() == Some(&slot.uid));
        let is_it = |gpu_node: &&gpu_operator_crd::GpuNode| gpu_node.spec.updates_begun == slot.update;
        let rollout = gpu_node.filter(is_it).and_then(|gpu_node| gpu_node.spec.rollout.as_ref());
        let deadline = rollout.and_then(|rollout| Some(rollout.deadline.as_ref()?.0));
        if let Some(deadline) = deadline.filter(|deadline| sim.now > *deadline + SLACK) {
            return Err(format!("{} has a slot, although the deadline of its update was {deadline}", slot.node));
        }
    }
    Ok(())
}

#[test]
fn a_node_that_is_excluded_in_its_turn_gives_its_slot_back() {
    let policy = Policy { mode: "Await", gpu_pods: ", timeout: 30m", ..Policy::default() };
    let mut fleet = Fleet::settled(policy, 2, &[NO_SLOT_BEYOND_ITS_DEADLINE]);
    let events = [(Event::PodStarts("a", Pod::Plain), 5), (Event::Driver(NEW), 60), (Event::Managed("a", false), 7200)];
    assert_eq!(fleet.go(&events), Ok(()));
}

#[test]
fn a_node_that_is_away_in_its_turn_gives_its_slot_back() {
    let mut fleet = Fleet::settled(Policy::default(), 2, &[NO_SLOT_BEYOND_ITS_DEADLINE]);
    assert_eq!(fleet.go(&[(Event::Driver(NEW), 10), (Event::IsAway("a", true), 7200)]), Ok(()));
}
