//! A policy and a node in each of their states, as the operator records them.

use crate::{
    coexistence::beside_a_dra_driver,
    health::set_health,
    messages::Steps,
    robust::{NEW, OLD, busy},
    runtime_restart::set_progress,
    sim::{Faults, Sim, faults::Test, machine::new_gpu_node},
    toolkit::{fleet, not_allocatable},
    validation::{ON_INSTALL, failing, hanging, node},
};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, health::HealthState, keys};
use gpu_operator_plan::world::{ContainerState, Refusal};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Returns ready nodes `a` and `b`, with eight H100 each.
fn two(spec: &str) -> Sim {
    Sim::settled_fleet(spec, &["a", "b"])
}

/// Returns the two nodes before their installation.
fn new_two(spec: &str) -> Sim {
    Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", spec)
}

fn slow() -> Faults {
    Faults { slow: 600, ..Faults::default() }
}

fn crash() -> Faults {
    Faults { driver_crash: Some("cc1: internal compiler error".to_owned()), ..Faults::default() }
}

fn missing_image() -> Faults {
    Faults { missing_images: ["590.10.01".to_owned()].into(), ..Faults::default() }
}

fn publishing(gpus: u32) -> Faults {
    Faults { publishes: Some(gpus), ..Faults::default() }
}

/// Returns two nodes that are being updated, of which node `a` has these faults.
fn updated(spec: impl Fn(&str) -> String, faults: Faults) -> Sim {
    two(&spec(OLD)).faulty(faults).run_for(60).policy("all", &spec(NEW)).run_for(60)
}

/// Adds that one ready node is enough to a policy's spec.
fn one_required(spec: &str) -> String {
    spec.replacen('{', "{readiness: {minReadyNodes: 1}, ", 1)
}

/// Returns the status that the API server adds to new objects of a CRD.
fn initial_status<S: DeserializeOwned>(crd_file: &str) -> Option<S> {
    let (_, crd) = gpu_operator_crd::crds().into_iter().find(|(file, _)| *file == crd_file)?;
    let crd = serde_json::to_value(&crd.spec.versions[0]).expect("JSON");
    let default = crd.pointer("/schema/openAPIV3Schema/properties/status/default").filter(|value| !value.is_null());
    default.map(|status: &Value| serde_json::from_value(status.clone()).expect("a status"))
}

fn policy_of(sim: &Sim) -> ClusterGpuPolicy {
    let mut policy = sim.policies[&"all".into()].clone();
    policy.status = policy.status.or_else(|| initial_status("clustergpupolicies.yaml"));
    policy
}

pub fn policies() -> Vec<(&'static str, ClusterGpuPolicy)> {
    let new = || Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let none_required = "{readiness: {minReadyNodes: 0}}";
    let shadowed = "{pools: [{name: a}, {name: b, match: {models: [t4]}}]}";
    let unsupported = "{pools: [{name: p, driver: {version: 470.256.02}}]}";
    let known_model = "{models: [{name: x, pciIDs: [\"2330\"], architecture: Hopper, memoryMiB: 81559}]}";
    let refusal = Refusal {
        message: "pods \"nodestack-nvml-probe-x\" is forbidden: violates PodSecurity \"restricted\"".to_owned(),
        at: None,
    };
    let states = vec![
        ("not observed yet", new()),
        ("no node matches", Sim::new().policy("all", "{}").run_for(60)),
        ("no node, none required", Sim::new().policy("all", none_required).run_for(60)),
        ("the probe's pods are rejected", {
            Sim::new()
                .policy("all", "{}")
                .then(|sim| drop(sim.refusals.insert("nodestack-nvml-probe".into(), refusal)))
                .run_for(60)
        }),
        ("an older policy governs all nodes", {
            Sim::new().policy("older", "{}").gpu_node("a", "2330", 8).run_for(60).policy("all", "{}").run_for(60)
        }),
        ("first installation", new().faulty(slow()).run_for(60)),
        ("a driver that fails", new().faulty(crash()).run_for(60)),
        ("the same, another node in progress", {
            new_two("{}").faulty(crash()).then(|sim| drop(sim.faults.insert("b".into(), slow()))).run_for(60)
        }),
        ("all ready", two("{}")),
        ("one of two ready, one required", new_two(&one_required("{}")).faulty(publishing(7)).run_for(60)),
        ("one of two failed, one required", new_two(&one_required("{}")).faulty(crash()).run_for(60)),
        ("a changed spec, not observed yet", two(OLD).policy("all", NEW)),
        ("update, a node at a time", updated(str::to_owned, slow())),
        ("the same, one required", updated(one_required, slow())),
        ("update halted", updated(str::to_owned, missing_image()).run_for(100)),
        ("the same, one required", updated(one_required, missing_image()).run_for(100)),
        ("a pool that no node can reach", two(shadowed)),
        ("a driver that does not support the model", two(unsupported)),
        ("a model that the catalogue has", two(known_model)),
        ("a GPU with a problem", two("{}").then(|sim| set_health(sim, 3, HealthState::Degraded)).run_for(60)),
        ("a node that is away", two("{}").then(|sim| sim.node_mut("b").ready = false).run_for(60)),
        ("a test that fails", {
            let faults = Faults { test: Test::Fails("no device".into()), ..Faults::default() };
            node(ON_INSTALL, faults).run_for(60)
        }),
        ("uninstalled", two("{}").then(|sim| sim.settings.quiets = true).run_for(10)),
        ("being deleted", two("{}").then(|sim| sim.delete_policy("all")).run_for(1)),
    ];
    states.iter().map(|(state, sim)| (*state, policy_of(sim))).collect()
}

fn node_of(sim: &Sim, name: &str) -> GpuNode {
    sim.gpu_nodes[&NodeName::from(name)].clone()
}

pub fn gpu_nodes() -> Vec<(&'static str, GpuNode)> {
    let ready = || Sim::settled_fleet("{}", &["a"]);
    let states = vec![
        ("without a report", {
            ready().faulty(Faults { mute_probe: true, ..Faults::default() }).then(|sim| {
                sim.gpu_nodes.clear();
                sim.sleep(61);
            })
        }),
        ("a driver that is installed", node("{}", slow())),
        ("a driver that fails", node("{}", crash())),
        ("a model without a driver", Sim::new().gpu_node("a", "fff1", 1).policy("all", "{}")),
        ("GPUs that are not allocatable yet", node("{}", publishing(7))),
        ("the same, for too long", node("{}", publishing(7)).run_for(60).then(|sim| sim.sleep(1801))),
        ("a test that runs", node(ON_INSTALL, hanging())),
        ("a test that fails", node(ON_INSTALL, failing())),
        ("ready", ready()),
        ("a GPU with a problem", ready().then(|sim| set_health(sim, 3, HealthState::Degraded))),
        ("a GPU that must not be used", {
            ready().then(|sim| set_health(sim, 3, HealthState::Unhealthy)).faulty(publishing(7))
        }),
        ("a GPU is missing", ready().then(|sim| sim.reboot("a", 1))),
        ("being updated", updated(str::to_owned, slow())),
        ("an update that fails", updated(str::to_owned, missing_image())),
        ("away", ready().then(|sim| sim.node_mut("a").ready = false)),
        ("being deleted", ready().then(|sim| sim.node_mut("a").deleting = true)),
        ("leaving", ready().then(|sim| busy(sim, "a")).then(|sim| sim.label("a", keys::MANAGED, Some("false")))),
        ("excluded by its label", ready().then(|sim| sim.label("a", keys::MANAGED, Some("false"))).run_for(90)),
        ("without a policy", ready().then(|sim| sim.delete_policy("all")).run_for(120)),
    ];
    let recorded = states.into_iter().map(|(state, sim)| (state, node_of(&sim.run_for(60), "a")));
    let new = GpuNode { status: initial_status("gpunodes.yaml"), ..new_gpu_node(&"a".into(), Sim::new().now) };
    let mut outdated = node_of(&ready(), "a");
    outdated.metadata.generation = outdated.metadata.generation.map(|generation| generation + 1);
    let installing = [("install-toolkit", ContainerState::Running(None))];
    let toolkit = fleet("containerd://1.7.27", "v1.34.1", "{}").then(|sim| set_progress(sim, &installing, false));
    let others = [
        ("not observed yet", new),
        ("a changed spec, not observed yet", outdated),
        ("a toolkit that is installed", node_of(&toolkit.then(not_allocatable).run_for(1), "a")),
        ("served by a DRA driver", node_of(&beside_a_dra_driver("{}").run_for(60), "claims")),
    ];
    others.into_iter().chain(recorded).collect()
}
