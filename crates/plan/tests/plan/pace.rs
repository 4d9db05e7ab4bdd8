//! How often the operator writes while a node joins.

use std::collections::BTreeMap;

use gpu_operator_crd::{Phase, reason::Reason};
use gpu_operator_plan::{Plan, loop_memory::LoopState, output::write::Step, pass::Pass, time::Uptime};

use crate::sim::{Faults, Sim};

#[test]
fn a_policys_status_is_written_while_a_large_fleet_is_installed() {
    const PASS: u16 = 10;
    let mut sim = Sim::new().policy("all", "{}");
    for node in 0..200 {
        sim.join(format!("n{node:03}"), "2330", 8);
    }
    let mut carry = LoopState::default();
    // How often the status was written, since when it has not been although a pass wanted to, and which passes came to their end.
    let (mut written, mut wanted, mut whole) = (0, None, Vec::new());
    for round in 0..40 {
        let (now, mut left) = (Uptime::from_secs((round * PASS).into()), 20);
        let (pass, requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, now));
        if [pass.outstanding(), pass.later()].concat().iter().any(|write| write.step() == Step::PolicyStatuses) {
            wanted.get_or_insert(now);
        }
        let mut steps = Vec::new();
        // The API server is slow: a pass of ten seconds has time for so many writes.
        let pass = sim.drive(pass, requests, &mut carry, now, |sim, write| {
            left -= 1;
            assert!(sim.write(write).is_ok(), "{write}");
            steps.push(write.step());
            left > 0
        });
        let is_whole = pass.later().is_empty();
        if let Some(at) = steps.iter().position(|step| *step == Step::PolicyStatuses) {
            written += 1;
            wanted = None;
            assert!(is_whole || steps[..at].iter().all(|step| *step <= Step::Taints), "{steps:?}");
        }
        assert!(
            wanted.is_none_or(|since| now < since + Uptime::from_secs(40)),
            "not written at {now:?}, wanted at {wanted:?}"
        );
        whole.push(is_whole);
        sim.surroundings();
        sim.sleep(PASS.into());
    }
    assert!(sim.message("all", "Ready").contains("200"), "{}", sim.message("all", "Ready"));
    assert!(whole.iter().filter(|whole| !**whole).count() > 20, "{whole:?}");
    assert!((3..=10).contains(&written), "{written}");
}

/// Returns the number of writes of each kind for an update of all nodes of a fleet, a tenth of them at a time.
fn writes_of_an_update(nodes: u32, mode: &str) -> BTreeMap<String, u32> {
    let spec = |version: &str| {
        let rollout = format!("{{maxParallel: {}, gpuPods: {{mode: {mode}}}}}", nodes / 10);
        format!("{{rollout: {rollout}, defaults: {{driver: {{version: {version}}}}}}}")
    };
    let mut sim = Sim::new().policy("all", &spec("595.91.07"));
    for node in 0..nodes {
        sim.join(format!("n{node:04}"), "2330", 8);
    }
    let mut carry = LoopState::default();
    sim.settle_with(&mut carry);
    sim.writes.clear();
    sim.apply_policy("all", &spec("590.10.01"));
    sim.settle_with(&mut LoopState::default());
    assert!(sim.machines.values().all(|machine| machine.driver.loaded.as_deref() == Some("590.10.01")));
    let mut of_kinds = BTreeMap::new();
    for (object, writes) in &sim.writes {
        let kind = object.split('/').next().unwrap_or_default();
        *of_kinds.entry(kind.to_owned()).or_insert(0) += writes;
    }
    of_kinds
}

#[test]
fn an_update_costs_the_same_writes_per_node_in_any_fleet() {
    for mode in ["Leave", "Await"] {
        let [small, large] = [10, 40].map(|nodes| writes_of_an_update(nodes, mode));
        println!("{mode}: {small:?} {large:?}");
        let per_node = |writes: &BTreeMap<String, u32>, nodes: u32| {
            ["node", "cordon"].map(|kind| writes.get(kind).copied().unwrap_or_default().div_ceil(nodes))
        };
        assert_eq!(per_node(&small, 10), per_node(&large, 40), "{mode}");
        // Both fleets are updated in ten waves.
        assert!(large["policy"] <= small["policy"] + 10, "{mode}: {small:?} {large:?}");
    }
}

#[test]
fn a_busy_node_costs_no_writes_while_others_are_updated() {
    let spec = |version: &str| format!("{{defaults: {{driver: {{version: {version}}}}}}}");
    let nodes = ["a", "b", "c"];
    let mut sim = Sim::settled_fleet(&spec("595.91.07"), &nodes);
    for node in nodes {
        sim.gpu_pods.insert(node.into(), vec![format!("team/{node}")]);
    }
    sim.apply_policy("all", &spec("590.10.01"));
    sim.settle();
    sim.writes.clear();
    sim.gpu_pods.remove(&"b".into());
    sim.settle();
    assert_eq!(sim.report("b").driver.loaded.as_deref(), Some("590.10.01"));
    assert_eq!((sim.writes.get("node/a"), sim.writes.get("node/c")), (None, None), "{:?}", sim.writes);
}

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
