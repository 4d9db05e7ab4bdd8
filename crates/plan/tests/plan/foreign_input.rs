//! Input that the operator does not control, damaged in every way: planning never panics, and what it writes is accepted by the
//! API server.

use std::{rc::Rc, sync::Arc};
use test_support::planned::Planned;

use gpu_operator_common::{quantity, version::Version};
use gpu_operator_crd::{GpuNode, GpuNodeSpec, GpuNodeStatus, NodeName};
use gpu_operator_plan::{
    Plan,
    assess::{installer_log::cause, pod_failure::named_reason},
    catalogue::branch_of,
    desired::{container_runtime::Runtime, driver::run_file_version},
    world::{NodeFacts, PodFacts, TrimmedNode, World},
};
use k8s_openapi::api::core::v1::Pod;
use proptest::prelude::*;
use serde_json::Value;
use test_support::damaged;

use crate::{
    schemas::{rejected, rejection},
    sim::{Faults, Sim},
};

const NODE: &str = "a";
/// A policy under which as much as possible of a node's facts is published.
const SPEC: &str =
    "{compatibility: {labels: GFD}, health: {onUnhealthy: {taint: {}}}, readiness: {validation: {mode: OnUpgrade}}}";

thread_local! {
    static SETTLED: Rc<Sim> = Rc::new(Sim::settled_fleet(SPEC, &[NODE]));
}

fn samples(kind: &str) -> Vec<Vec<u8>> {
    damaged::corpus(env!("CARGO_MANIFEST_DIR"), kind)
}

/// The probe's samples of a GpuNode.
fn gpu_nodes() -> Vec<Vec<u8>> {
    damaged::corpus(concat!(env!("CARGO_MANIFEST_DIR"), "/../nvml-probe"), "report")
}

/// Returns the settled world after a change.
fn world(change: impl FnOnce(&mut World)) -> World {
    let mut world = SETTLED.with(Rc::clone).world();
    change(&mut world);
    world
}

/// Returns whether the API server accepts this as a label's value.
fn is_label_value(value: &str) -> bool {
    let ends = value.starts_with(char::is_alphanumeric) && value.ends_with(char::is_alphanumeric);
    let letters = value.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    value.is_empty() || value.len() <= 63 && letters && ends
}

/// Fails if the API server would reject a write of a plan.
fn is_accepted(plan: &Plan) {
    assert_eq!(rejection(plan), None);
    for (key, value) in plan.labels().values().flat_map(|write| &write.labels) {
        assert!(is_label_value(value), "{key}: {value:?}");
        let name = key.rsplit('/').next().unwrap_or_default();
        assert!(!name.is_empty() && name.len() <= 63, "{key:?}");
    }
    for write in plan.conditions().values() {
        let message = format!("{write:?}");
        assert!(message.len() < 40_000, "{message}");
    }
}

/// Plans, and checks what is written if an API server could have accepted the input: what stays is written as it is.
fn plans(possible: bool, world: World) {
    let plan = SETTLED.with(Rc::clone).plan_for(world);
    if possible {
        is_accepted(&plan);
    }
}

fn gpu_node(object: &Value) -> Option<GpuNode> {
    let spec: GpuNodeSpec = serde_json::from_value(object["spec"].clone()).ok()?;
    let status: GpuNodeStatus = serde_json::from_value(object["status"].clone()).ok()?;
    let mut gpu_node = GpuNode::new(NODE, spec);
    gpu_node.metadata = SETTLED.with(Rc::clone).gpu_nodes[&NodeName::from(NODE)].metadata.clone();
    gpu_node.status = Some(status);
    Some(gpu_node)
}

proptest! {
    #![proptest_config(test_support::random::config(64))]

    #[test]
    fn a_gpu_node(object in damaged::json(&gpu_nodes())) {
        let Some(gpu_node) = gpu_node(&object) else { return Ok(()) };
        let possible = rejected(&gpu_node).is_none();
        plans(possible, world(|world| drop(world.gpu_nodes.insert(NODE.into(), Arc::new(gpu_node)))));
    }

    #[test]
    fn a_report(object in damaged::json(&gpu_nodes())) {
        let Some(damaged) = gpu_node(&object) else { return Ok(()) };
        let mut gpu_node = SETTLED.with(Rc::clone).gpu_nodes[&NodeName::from(NODE)].clone();
        if let (Some(status), Some(damaged)) = (&mut gpu_node.status, damaged.status) {
            status.report = damaged.report;
        }
        let possible = rejected(&gpu_node).is_none();
        plans(possible, world(|world| drop(world.gpu_nodes.insert(NODE.into(), Arc::new(gpu_node)))));
    }

    #[test]
    fn a_node(object in damaged::json(&samples("node"))) {
        let mut labels = object["metadata"]["labels"].as_object().into_iter().flatten();
        let possible = labels.all(|(_, value)| value.as_str().is_none_or(is_label_value));
        let Ok(node) = serde_json::from_value::<TrimmedNode>(object) else { return Ok(()) };
        let facts = NodeFacts { name: NODE.into(), ..NodeFacts::of(&node) };
        plans(possible, world(|world| drop(world.nodes.insert(NODE.into(), Arc::new(facts)))));
    }

    #[test]
    fn pods(object in damaged::json(&samples("pod"))) {
        let Ok(pod) = serde_json::from_value::<Pod>(object) else { return Ok(()) };
        let Some(facts) = PodFacts::of(&pod) else { return Ok(()) };
        plans(true, world(|world| {
            world.pods = world.pods.values().filter(|pod| pod.role != facts.role).cloned().collect();
            world.pods.insert(Arc::new(facts));
        }));
    }

    #[test]
    fn an_installers_log(log in damaged::text(samples("installer_log"))) {
        let _ = (cause(&log), named_reason(&log));
        let mut sim = Sim::new().gpu_node(NODE, "2330", 1).policy("all", "{}");
        sim.faults.insert(NODE.into(), Faults { driver_crash: Some(log), ..Faults::default() });
        for _ in 0..4 {
            is_accepted(&sim.plan());
            sim.step();
        }
    }

    #[test]
    fn addresses_versions_and_quantities(text in damaged::text(samples("text"))) {
        for word in text.lines().chain([text.as_str()]) {
            prop_assert!(run_file_version(word).is_none_or(|version| branch_of(version).is_some() && version.len() <= word.len()));
            prop_assert!(Version::leading(word).is_none_or(|version| version.parts() <= word.len()));
            let _ = (Runtime::of(word), word.parse::<Version>(), word.parse::<quantity::Amount>(), quantity::count(word));
        }
    }
}

#[test]
fn every_sample_is_read() {
    assert!(gpu_nodes().iter().all(|sample| gpu_node(&serde_json::from_slice(sample).expect("JSON")).is_some()));
    assert!(samples("node").iter().all(|sample| serde_json::from_slice::<TrimmedNode>(sample).is_ok()));
    for sample in samples("pod") {
        let pod: Pod = serde_json::from_slice(&sample).expect("a pod");
        assert!(PodFacts::of(&pod).is_some());
    }
    assert!(samples("installer_log").iter().all(|log| cause(&String::from_utf8_lossy(log)).is_some()));
}
