//! How often the operator writes while a node joins.

use gpu_operator_crd::{Phase, reason::Reason};
use gpu_operator_plan::{Plan, carry::LoopState};

use crate::sim::{Faults, Sim};

#[test]
fn a_node_that_joins_slowly_costs_eight_requests() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    let (before, policy) = (sim.plans.len(), sim.writes["policy/all"]);
    sim.faults.insert("new".into(), Faults { slow: 60, ..Faults::default() });
    sim.join("new", "2330", 8);
    sim.settle_with(&mut LoopState::default());
    assert_eq!(sim.status("new").phase, Phase::Ready);
    // The status of each stage, the spec and the labels.
    assert_eq!((sim.writes["node/new"], sim.writes["policy/all"] - policy), (6, 2));
    let events = sim.plans[before..].iter().flat_map(Plan::events).map(|event| event.reason);
    assert_eq!(events.collect::<Vec<_>>(), [Reason::NodesNotReady, Reason::AllGpusAllocatable]);
}
