//! Nodes in different states.

use clap::Parser;
use gpu_operator_crd::{
    health::{Action, Cause, CauseKind, GpuHealth, HealthState, Severity},
    keys,
    policy::Stage,
};
use gpu_operator_plan::catalogue::Catalogue;
use http::StatusCode;
use k8s_openapi::{
    api::core::v1::{Event, Node, NodeCondition},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::ResourceExt;
use serde_json::json;
use test_api_server::{Api, Fault};
use test_support::sim::Sim;

use super::super::*;
use crate::{
    context::Outcome,
    explain::{
        node_facts::{DetectorPod, Facts, NodePods, NodeState},
        node_report::report,
    },
    output::{Screen, Tone},
    report::{Line, Look, Report},
    testing::{SCREEN, assert_narrow},
};

fn facts(sim: &Sim, name: &str) -> Facts {
    let world = sim.world();
    let key = name.into();
    let ready = NodeCondition {
        type_: "Ready".into(),
        last_transition_time: Some(Time(created())),
        ..NodeCondition::default()
    };
    let node = world.nodes.get(&key).map(|node| NodeState { facts: (**node).clone(), ready: Some(ready) });
    let own = sim.pods.values().filter(|pod| pod.node == key).cloned().collect();
    let detector = Some(DetectorPod { name: "gpu-detector-x".into(), phase: "Running".into() });
    Facts {
        name: name.to_owned(),
        namespace: "gpu-operator".into(),
        node: Ok(node),
        gpu_node: Ok(world.gpu_nodes.get(&key).map(|gpu_node| (**gpu_node).clone())),
        policies: Ok(sim.policies.values().cloned().collect()),
        pods: Ok(NodePods { own, detector }),
        events: Ok(Vec::new()),
    }
}

/// Returns the time at which every simulation begins.
fn created() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

/// Returns the line of a name.
fn line<'r>(report: &'r Report, name: &str) -> &'r Line {
    report.sections.iter().flatten().find(|line| line.name == name).expect("a line")
}

/// Returns the texts of the lines of a name.
fn texts<'r>(report: &'r Report, name: &str) -> Vec<&'r str> {
    report.sections.iter().flatten().filter(|line| line.name == name).map(|line| line.text.as_str()).collect()
}

fn explained(facts: &Facts, now: Timestamp) -> Report {
    report(facts, &Catalogue::builtin().expect("a catalogue"), now)
}

/// Returns the explanation as it is printed.
fn printed(facts: &Facts, now: Timestamp) -> String {
    let text = explained(facts, now).text(SCREEN, now);
    assert_narrow(&text);
    text
}

fn screen(sim: &Sim, name: &str) -> String {
    printed(&facts(sim, name), sim.now)
}

#[test]
fn a_ready_node_has_nothing_to_do() {
    let sim = Sim::settled_fleet("{}", &["a"]);
    assert!(explained(&facts(&sim, "a"), sim.now).is_good);
    insta::assert_snapshot!(screen(&sim, "a"));
}

#[test]
fn an_update_shows_the_pods_that_it_waits_for() {
    let mut sim = Sim::settled_fleet("{rollout: {gpuPods: {mode: Await, timeout: 2h}}}", &["a"]);
    sim.gpu_pods.insert("a".into(), vec!["ml/train-0".into(), "ml/train-1".into()]);
    sim.apply_policy(
        "all",
        "{defaults: {driver: {version: 580.95.05}}, rollout: {gpuPods: {mode: Await, timeout: 2h}}}",
    );
    sim.settle();
    sim.sleep(600);
    insta::assert_snapshot!(screen(&sim, "a"));
}

#[test]
fn a_failed_driver_has_its_log_and_what_to_do() {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join("a", "2330", 8);
    sim.faults.entry("a".into()).or_default().driver_crash = Some("modprobe: FATAL: Module nvidia is in use".into());
    sim.settle();
    sim.sleep(900);
    insta::assert_snapshot!(screen(&sim, "a"));
}

#[test]
fn an_unhealthy_gpu_has_its_address_and_causes() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let cause = Cause {
        kind: CauseKind::Xid.into(),
        severity: Severity::Fatal,
        xid: Some(79),
        count: None,
        evidence: "NVRM: GPU has fallen off the bus".into(),
        since: Time(sim.now),
        recovering: false,
    };
    let since = Some(Time(sim.now));
    let health = GpuHealth {
        state: HealthState::Unhealthy,
        action: Action::RebootNode.into(),
        since,
        causes: vec![cause],
        ..GpuHealth::default()
    };
    for gpu in &mut sim.report("a").gpus {
        gpu.health = GpuHealth { state: HealthState::Healthy, ..GpuHealth::default() };
    }
    sim.report("a").gpus[2].health = health;
    sim.settle();
    sim.sleep(300);
    insta::assert_snapshot!(screen(&sim, "a"));
}

#[test]
fn a_node_without_a_policy_lists_the_policies() {
    let mut sim = Sim::new().policy("h100", "{nodeSelector: {matchLabels: {team: ml}}}");
    sim.join("a", "2330", 8);
    sim.settle();
    insta::assert_snapshot!(screen(&sim, "a"));
}

#[test]
fn a_node_that_is_not_ready_has_kubelets_message() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.node_mut("a").ready = false;
    sim.node_mut("a").cordoned = true;
    sim.settle();
    sim.sleep(1200);
    let mut facts = facts(&sim, "a");
    let ready = facts.node.as_mut().expect("a node").as_mut().expect("a node").ready.as_mut().expect("a condition");
    ready.reason = Some("NodeStatusUnknown".into());
    ready.message = Some("Kubelet stopped posting node status.".into());
    assert!(!explained(&facts, sim.now).is_good);
    insta::assert_snapshot!(printed(&facts, sim.now));
}

#[test]
fn without_a_gpu_node_the_detector_decides_what_is_known() {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join_plain("plain");
    let mut facts = facts(&sim, "plain");
    insta::assert_snapshot!(printed(&facts, sim.now));
    facts.pods = Ok(NodePods::default());
    insta::assert_snapshot!(printed(&facts, sim.now));
}

#[test]
fn missing_rights_are_named_beside_what_is_known() {
    let sim = Sim::settled_fleet("{}", &["a"]);
    let mut facts = facts(&sim, "a");
    let missing = |right: &str| {
        format!("the right to {right} is missing; bind the ClusterRole nodestack-gpu-operator-cli of the chart")
    };
    facts.node = Err(missing("get nodes"));
    facts.policies = Err(missing("list clustergpupolicies.gpu.nodestack.dev"));
    facts.pods = Err(missing("list pods"));
    facts.events = Err(missing("list events"));
    insta::assert_snapshot!(printed(&facts, sim.now));
}

#[test]
fn a_report_of_an_earlier_boot_and_a_cordon_are_shown() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let node = sim.node_mut("a");
    node.boot_id = "another".into();
    (node.cordoned, node.own_cordon) = (true, true);
    let mut facts = facts(&sim, "a");
    let probe = |pod: &gpu_operator_plan::world::PodFacts| pod.role == gpu_operator_plan::world::Role::Probe;
    facts.pods.as_mut().expect("pods").own.retain(|pod| !probe(pod));
    let gpu_node = facts.gpu_node.as_mut().expect("a GpuNode").as_mut().expect("a GpuNode");
    gpu_node.status.as_mut().expect("a status").deadline = Some(Time(sim.now));
    sim.sleep(3600);
    let event = Line::named("RebootNeeded", "the driver installed on the host differs from the loaded one");
    let event = Line { state: Some(Tone::Warning), since: Some(sim.now), look: Look::Event, ..event };
    facts.events = Ok(vec![event]);
    insta::assert_snapshot!(printed(&facts, sim.now));
}

#[test]
fn what_the_operator_has_not_reported_yet_is_noted() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.node_mut("a").ready = false;
    let report = explained(&facts(&sim, "a"), sim.now);
    let notes = texts(&report, "Note");
    assert!(notes[0].contains("has not reported that the Node is NotReady"), "{notes:?}");
    assert_eq!(texts(&report, "Do"), ["Check the conditions of the Node (`kubectl describe node`)."]);
    let mut facts = facts(&Sim::settled_fleet("{}", &["a"]), "a");
    let gpu_node = facts.gpu_node.as_mut().expect("a GpuNode").as_mut().expect("a GpuNode");
    gpu_node.metadata.generation = Some(99);
    let status = gpu_node.status.as_mut().expect("a status");
    status.reason = Some(serde_json::from_value(json!("OfTomorrow")).expect("a reason"));
    let report = explained(&facts, sim.now);
    let notes = texts(&report, "Note");
    assert!(notes[0].contains("does not know the reason OfTomorrow"), "{notes:?}");
    assert!(notes[1].contains("the status is older than"), "{notes:?}");
}

#[test]
fn a_missing_gpu_has_its_last_address() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.report("a").gpus.remove(7);
    sim.settle();
    let report = explained(&facts(&sim, "a"), sim.now);
    let check = line(&report, "GPUs");
    assert_eq!(check.lines[0].text, "missing: 0000:0d:00.0");
    assert_eq!(check.text, "7 on the PCI bus: nvidia-h100-80gb, by PCI device id 2330");
}

#[test]
fn it_is_shown_what_the_pool_sets() {
    for (pool, line) in [
        (
            "driver: {}, rollout: {paused: false}",
            "set by the pool: driver, rollout; by the policy: toolkit, devicePlugin",
        ),
        ("match: {models: [nvidia-h100-80gb]}", "set by the pool: none; by the policy: driver, toolkit"),
    ] {
        let sim = Sim::settled_fleet(&format!("{{pools: [{{name: p, {pool}}}]}}"), &["a"]);
        let text = screen(&sim, "a").split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(line), "{pool}: {text}");
    }
}

#[test]
fn the_source_of_the_model_is_named() {
    for (key, value) in
        [(keys::MODEL_OVERRIDE, "nvidia-a100-80gb"), ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb")]
    {
        let mut sim = Sim::new().policy("all", "{}");
        sim.join("a", "2330", 8);
        sim.label("a", key, Some(value));
        sim.settle();
        let report = explained(&facts(&sim, "a"), sim.now);
        assert_eq!(line(&report, "GPUs").text, format!("8 on the PCI bus: {value}, by label {key}"));
    }
}

#[test]
fn every_stage_that_crashes_fails_with_its_pod() {
    for (stage, name) in [(Stage::Toolkit, "Toolkit"), (Stage::DevicePlugin, "Device plugin")] {
        let mut sim = Sim::new().policy("all", "{}");
        sim.join("a", "2330", 8);
        sim.faults.entry("a".into()).or_default().crashing = Some(stage);
        sim.settle();
        let report = explained(&facts(&sim, "a"), sim.now);
        let check = line(&report, name);
        assert_eq!((check.state, check.text.as_str()), (Some(Tone::Bad), "ContainerCrashed"), "{stage:?}");
        assert!(check.lines.iter().any(|line| line.text.starts_with("pod ")), "{check:?}");
        assert!(!texts(&report, "Do").is_empty() && !report.is_good);
    }
}

fn context(api: &Api, now: Timestamp) -> Context {
    Context { client: api.client(), namespace: "ml".into(), screen: Screen::default(), now }
}

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    explain: Explain,
}

/// Returns the error of a command.
async fn error(arguments: &[&str], api: &Api) -> String {
    let explain = Arguments::parse_from(["x"].iter().chain(arguments)).explain;
    explain.report(std::future::ready(Ok(context(api, Timestamp::UNIX_EPOCH)))).await.expect_err("an error").to_string()
}

/// Returns an API server with a Node and the GpuNode of a settled node.
fn api(sim: &Sim) -> Api {
    let api = Api::new();
    let facts = sim.node("a");
    let node: Node = serde_json::from_value(json!({
        "metadata": {"name": "a", "uid": facts.uid, "annotations": {keys::CORDON: "true"}},
        "spec": {"unschedulable": true},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "nodeInfo": {
                "bootID": facts.boot_id, "architecture": "amd64", "containerRuntimeVersion": "containerd://2.1.4", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
            },
        },
    }))
    .expect("a Node");
    api.add(&node).add(&sim.gpu_nodes[&"a".into()]).add(&sim.policies[&"all".into()]);
    for (name, kind) in [("first", "GpuNode"), ("second", "Pod")] {
        let event: Event = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default"}, "reason": name, "reportingComponent": "gpu-operator",
            "involvedObject": {"kind": kind, "name": "a"}, "lastTimestamp": "2026-01-01T00:00:00Z",
        }))
        .expect("an Event");
        api.add(&event);
    }
    api
}

#[tokio::test]
async fn a_node_is_read_with_five_requests() {
    let sim = Sim::settled_fleet("{}", &["a"]);
    let api = api(&sim);
    let facts = node_facts::read(&api.client(), "a", "gpu-operator").await.expect("an answer").expect("facts");
    let made = api.take();
    assert_eq!(made.len(), 5, "{made:?}");
    let node = facts.node.expect("a Node").expect("a Node");
    assert!(node.facts.ready && node.facts.own_cordon && node.ready.is_some());
    assert_eq!(facts.policies.expect("policies")[0].name_any(), "all");
    let reasons: Vec<_> = facts.events.expect("Events").into_iter().map(|event| event.name).collect();
    assert_eq!(reasons, ["first"]);
}

#[test]
fn the_exit_code_of_a_node_is_its_readiness() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let good = explained(&facts(&sim, "a"), sim.now).outcome();
    sim.node_mut("a").ready = false;
    let not_ready = explained(&facts(&sim, "a"), sim.now).outcome();
    sim.leave(&"a".into());
    let gone = explained(&facts(&sim, "a"), sim.now).outcome();
    assert_eq!((good, not_ready, gone), (Outcome::Good, Outcome::Bad, Outcome::Bad));
}

#[tokio::test]
async fn a_missing_node_and_missing_rights_are_errors() {
    let api = Api::new();
    let expected = "there is no node x; to list what exists: kubectl get nodes,gpunodes";
    assert_eq!(error(&["node", "x"], &api).await, expected);
    let expected = "there is no pod ml/x; to list what exists: kubectl get pods --namespace ml";
    assert_eq!(error(&["pod", "x"], &api).await, expected);
    api.forbid("nodes").forbid("gpunodes");
    let forbidden = error(&["node", "x"], &api).await;
    assert!(forbidden.starts_with("the right to get nodes is missing"), "{forbidden}");
    api.fail(|_| true, Fault::Refused(StatusCode::SERVICE_UNAVAILABLE));
    error(&["node", "x"], &api).await;
    assert!(Arguments::try_parse_from(["x", "reason", "y"]).is_err());
}
