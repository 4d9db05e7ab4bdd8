//! How often the operator writes while a node joins.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{Phase, reason::Reason};
use gpu_operator_plan::{carry::pace::StatusThrottle, time::Uptime};

#[test]
fn a_node_that_joins_slowly_costs_ten_requests() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    let before = sim.plans.len();
    sim.faults.insert("new".into(), Faults { slow: 120, ..Faults::default() });
    let joined = sim.now;
    sim.join("new", "2330", 8);
    let mut pace = StatusThrottle::default();
    let all = "all".into();
    let mut written = sim.policies[&all].status.clone();
    let mut policy = 0;
    while sim.status("new").phase != Phase::Ready {
        sim.step();
        let status = sim.plans.last().expect("a plan").statuses[&all].clone();
        let now = Uptime::try_from(sim.now.duration_since(joined)).expect("time passes");
        if written.as_ref() != Some(&status) && pace.wait(&all, written.as_ref(), &status, now).is_none() {
            pace.written(&all, now);
            written = Some(status);
            policy += 1;
        }
        sim.sleep(1);
    }
    // The status of each stage, the spec and the labels.
    assert_eq!((sim.writes["node/new"], policy), (6, 2));
    let events = sim.plans[before..].iter().flat_map(|plan| &plan.events).map(|event| event.reason);
    assert_eq!(events.collect::<Vec<_>>(), [Reason::NodesNotReady, Reason::AllGpusAllocatable]);
}
