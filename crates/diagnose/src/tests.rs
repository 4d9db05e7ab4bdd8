//! Tables of pods: which findings they lead to, and which they do not.

mod cuda;
mod foreign_input;
mod not_started;
mod scheduling;
mod spec;

use std::sync::Arc;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use gpu_operator_plan::world::{NodeFacts, Resources, World};
use k8s_openapi::{
    api::core::v1::{Event, Pod},
    jiff::Timestamp,
};
use serde_json::json;

use super::*;

/// Returns a time one hour after the creation of every pod.
pub fn now() -> Timestamp {
    "2026-01-01T01:00:00Z".parse().unwrap()
}

/// Returns a pod with this spec, written as YAML, in namespace `team`.
pub fn pod(name: &str, spec: &str) -> Pod {
    let spec: serde_json::Value = serde_yaml::from_str(spec).unwrap();
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "team", "uid": format!("uid-{name}"), "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": spec, "status": {"phase": "Pending"},
    }))
    .unwrap()
}

/// Diagnoses a pod without Events.
pub fn diagnosed(pod: &Pod, world: &World) -> Diagnosis {
    diagnose(pod, Some(&[]), world, now())
}

/// Returns the findings about a pod with this spec.
pub fn found(spec: &str, world: &World) -> Vec<(Mistake, String)> {
    diagnosed(&pod("p", spec), world).findings.into_iter().map(|finding| (finding.reason, finding.message)).collect()
}

pub fn reasons(spec: &str, world: &World) -> Vec<Mistake> {
    found(spec, world).into_iter().map(|(reason, _)| reason).collect()
}

pub fn world(policy: &str) -> World {
    let policy = ClusterGpuPolicy::new("all", serde_yaml::from_str(policy).unwrap());
    World { policies: [("all".into(), Arc::new(policy))].into_iter().collect(), ..World::default() }
}

pub fn node(world: &mut World, name: &str, model: &str, gpus: u32) {
    let labels = [("gpu.nodestack.dev/model".into(), model.into()), ("kubernetes.io/hostname".into(), name.into())];
    let facts = NodeFacts {
        name: name.into(),
        ready: true,
        labels: labels.into(),
        allocatable: gpus.into(),
        ..NodeFacts::default()
    };
    let mut gpu_node = GpuNode::new(name, serde_json::from_value(json!({"policy": "all", "pool": model})).unwrap());
    let status = json!({"model": model, "phase": "Ready", "gpus": {"expected": gpus, "allocatable": gpus}});
    gpu_node.status = Some(serde_json::from_value(status).unwrap());
    world.nodes.insert(name.into(), Arc::new(facts));
    world.gpu_nodes.insert(name.into(), Arc::new(gpu_node));
}

pub fn edit(world: &mut World, name: &str, edit: impl FnOnce(&mut NodeFacts, &mut GpuNode)) {
    let name = name.into();
    let (node, gpu_node) = (world.nodes.get_mut(&name).unwrap(), world.gpu_nodes.get_mut(&name).unwrap());
    edit(Arc::make_mut(node), Arc::make_mut(gpu_node));
}

/// Adds a node whose driver is still being installed.
pub fn coming(world: &mut World, name: &str, model: &str, gpus: u32) {
    node(world, name, model, gpus);
    edit(world, name, |node, gpu_node| {
        node.allocatable = Resources::default();
        node.labels.clear();
        let status = json!({
            "model": model, "phase": "Driver", "reason": "DriverInstalling", "message": "installing 595.91.07",
            "gpus": {"expected": gpus},
        });
        gpu_node.status = Some(serde_json::from_value(status).unwrap());
    });
}
