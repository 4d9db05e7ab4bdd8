//! Pods with and without a mistake.

use k8s_openapi::{
    api::core::v1::{Event, Pod},
    jiff::{SignedDuration, Timestamp},
};
use serde_json::{Value, json};
use test_api_server::{Api, Made};
use test_support::sim::Sim;

use super::super::*;
use crate::{
    context::Outcome,
    explain::pod_report::{Facts, report},
    output::Tone,
    testing::{SCREEN, assert_narrow},
};

const CREATED: &str = "2026-01-01T00:00:00Z";

fn now() -> Timestamp {
    CREATED.parse::<Timestamp>().expect("a time") + SignedDuration::from_mins(12)
}

fn pod(spec: &Value, status: &Value) -> Pod {
    serde_json::from_value(json!({
        "metadata": {"name": "train", "namespace": "ml", "uid": "uid-train", "creationTimestamp": CREATED},
        "spec": spec, "status": status,
    }))
    .expect("a pod")
}

/// Returns the spec of a pod that requests an amount of a resource.
fn requesting(resource: &str, count: u32) -> Value {
    json!({"containers": [{"name": "main", "image": "app:1", "resources": {"limits": {resource: count.to_string()}}}]})
}

fn pending() -> Value {
    json!({"phase": "Pending"})
}

fn facts(sim: &Sim, pod: Pod) -> Facts {
    Facts { pod, events: Ok(Vec::new()), world: sim.world(), missing: Vec::new() }
}

fn printed(facts: &Facts) -> String {
    let text = report(facts, now()).text(SCREEN, now());
    assert_narrow(&text);
    text
}

fn fleet() -> Sim {
    Sim::settled_fleet("{}", &["a", "b"])
}

#[test]
fn a_pod_that_requests_too_many_gpus_has_a_finding() {
    let status = json!({"phase": "Pending", "conditions": [{
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
    }]});
    let facts = facts(&fleet(), pod(&requesting("nvidia.com/gpu", 16), &status));
    assert_eq!(report(&facts, now()).outcome(), Outcome::Bad);
    insta::assert_snapshot!(printed(&facts));
}

#[test]
fn a_pod_with_the_legacy_resource_has_a_finding() {
    insta::assert_snapshot!(printed(&facts(
        &fleet(),
        pod(&requesting("alpha.kubernetes.io/nvidia-gpu", 1), &pending())
    )));
}

#[test]
fn a_pod_that_waits_for_free_gpus_has_the_matching_nodes() {
    let mut sim = fleet();
    sim.node_mut("b").cordoned = true;
    insta::assert_snapshot!(printed(&facts(&sim, pod(&requesting("nvidia.com/gpu", 2), &pending()))));
}

#[test]
fn a_running_pod_has_its_node() {
    let mut spec = requesting("nvidia.com/gpu", 1);
    spec["nodeName"] = "a".into();
    let running = pod(&spec, &json!({"phase": "Running"}));
    let facts_of_running = facts(&fleet(), running.clone());
    assert_eq!(report(&facts_of_running, now()).outcome(), Outcome::Good);
    insta::assert_snapshot!(printed(&facts_of_running));
    let mut with_devices = running;
    let statuses = json!([{
        "name": "main", "image": "app:1", "imageID": "", "ready": true, "restartCount": 0,
        "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-1"}]}],
    }]);
    with_devices.status.as_mut().expect("a status").container_statuses =
        serde_json::from_value(statuses).expect("statuses");
    assert!(printed(&facts(&fleet(), with_devices)).contains("It runs on node a with GPU-1."));
}

#[test]
fn a_pod_that_requests_no_gpu_is_answered_so() {
    insta::assert_snapshot!(printed(&facts(&fleet(), pod(&json!({"containers": [{"name": "main"}]}), &pending()))));
}

#[test]
fn a_container_that_fails_to_start_is_shown_with_its_events() {
    let mut spec = requesting("nvidia.com/gpu", 1);
    spec["nodeName"] = "a".into();
    spec["runtimeClassName"] = "nvidia".into();
    let status = json!({"phase": "Pending", "containerStatuses": [{
        "name": "main", "image": "app:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ContainerCreating"}},
    }]});
    let event: Event = serde_json::from_value(json!({
        "metadata": {"name": "e", "namespace": "ml"}, "involvedObject": {"kind": "Pod", "uid": "uid-train"},
        "reason": "FailedCreatePodSandBox", "message": "no runtime for \"nvidia\" is configured",
    }))
    .expect("an Event");
    let mut facts = facts(&fleet(), pod(&spec, &status));
    facts.events = Ok(vec![event]);
    insta::assert_snapshot!(printed(&facts));
}

#[test]
fn without_the_nodes_only_certain_findings_are_reported() {
    let sim = Sim::new();
    for (resource, count, expected) in
        [("nvidia.com/gpu", 16, &[][..]), ("alpha.kubernetes.io/nvidia-gpu", 1, &["LegacyGpuResource"])]
    {
        let mut facts = facts(&sim, pod(&requesting(resource, count), &pending()));
        let names = ["NoNodeFits", "LegacyGpuResource"];
        let found = |facts: &Facts| {
            let text = printed(facts);
            names.into_iter().filter(|name| text.contains(&format!("× {name}: "))).collect::<Vec<_>>()
        };
        if expected.is_empty() {
            assert_eq!(found(&facts), ["NoNodeFits"]);
        }
        facts.missing.push("the right to list nodes is missing".into());
        assert_eq!(found(&facts), expected);
        let text = printed(&facts);
        assert!(text.contains("\nNote: ") && text.ends_with("the right to list nodes is\n      missing.\n"), "{text}");
    }
}

#[test]
fn amounts_of_containers_are_added_and_init_containers_are_not() {
    let mut spec = requesting("nvidia.com/gpu", 2);
    let container = spec["containers"][0].clone();
    spec["containers"].as_array_mut().expect("containers").push(container);
    spec["initContainers"] = requesting("nvidia.com/gpu", 3)["containers"].clone();
    let requested = |spec: &Value, amount: u32| {
        printed(&facts(&fleet(), pod(spec, &pending()))).contains(&format!("  requests {amount} nvidia.com/gpu\n"))
    };
    assert!(requested(&spec, 4));
    spec["initContainers"] = requesting("nvidia.com/gpu", 8)["containers"].clone();
    assert!(requested(&spec, 8));
}

#[test]
fn nodes_that_offer_enough_come_first() {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join("a", "2330", 2);
    sim.join("b", "2330", 8);
    sim.settle();
    let report = report(&facts(&sim, pod(&requesting("nvidia.com/gpu", 4), &pending())), now());
    let nodes = report.sections.iter().find(|lines| lines[0].text.starts_with("2 GPU nodes match")).expect("nodes");
    let nodes: Vec<_> = nodes[1..].iter().map(|node| (&node.name[..1], node.state)).collect();
    assert_eq!(nodes, [("b", Some(Tone::Good)), ("a", Some(Tone::Warning))]);
}

#[tokio::test]
async fn a_pod_is_read_with_its_own_node_only() {
    let sim = fleet();
    let api = Api::new();
    let mut spec = requesting("nvidia.com/gpu", 1);
    spec["nodeName"] = "a".into();
    api.add(&pod(&spec, &json!({"phase": "Running"}))).forbid("nodes");
    for gpu_node in sim.gpu_nodes.values() {
        api.add(gpu_node);
    }
    let facts = pod_report::read(&api.client(), "ml", "train").await.expect("an answer").expect("facts");
    assert_eq!(facts.world.gpu_nodes.len(), 1);
    assert!(facts.missing.len() == 1 && facts.missing[0].contains("get nodes"), "{:?}", facts.missing);
    assert!(api.take().iter().map(Made::line).any(|line| line.contains("events?") && line.contains("uid-train")));
}
