//! Screens of fleets, as the operator's plan and the simulator make them.

use gpu_operator_crd::health::{Action, Cause, CauseKind, GpuHealth, HealthState, Severity};
use http::StatusCode;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition, DeploymentStatus},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::SignedDuration,
};
use serde_json::{Value, json};
use test_api_server::{Api, Fault};
use test_support::sim::{Faults, Sim};

use super::{read, report};
use crate::{
    context::Outcome,
    output::{Screen, columns},
    read::ReadError,
    testing::{SCREEN, assert_narrow},
};

/// Another driver for a fleet that has the default one.
const NEW: &str = "{defaults: {driver: {version: 590.10.01}}, rollout: {maxParallel: 2}}";

fn available(status: &str) -> Deployment {
    let mut deployment = Deployment::default();
    deployment.metadata.name = Some("nodestack-gpu-operator".into());
    deployment.metadata.namespace = Some("gpu-operator".into());
    let since = "2026-01-01T00:05:00Z".parse().expect("a time");
    let condition = DeploymentCondition {
        type_: "Available".into(),
        status: status.into(),
        last_transition_time: Some(Time(since)),
        ..DeploymentCondition::default()
    };
    deployment.status = Some(DeploymentStatus { conditions: Some(vec![condition]), ..DeploymentStatus::default() });
    deployment
}

fn cluster(sim: &Sim) -> Api {
    let api = Api::new();
    api.add(&available("True"));
    for policy in sim.policies.values() {
        api.add(policy);
    }
    for gpu_node in sim.gpu_nodes.values() {
        api.add(gpu_node);
    }
    api
}

fn fleet(spec: &str) -> Sim {
    Sim::settled_fleet(spec, &["h100-1", "h100-2", "h100-3"])
}

/// Returns a fleet of two models.
fn mixed() -> Sim {
    let mut sim = fleet("{}");
    sim.join("k80-1", "102d", 4);
    sim.settle();
    sim
}

fn faulty(mut sim: Sim, node: &str, faults: Faults) -> Sim {
    sim.faults.insert(node.into(), faults);
    sim
}

fn steps(mut sim: Sim, count: u32) -> Sim {
    sim.steps(count);
    sim
}

fn with(mut sim: Sim, change: impl FnOnce(&mut Sim)) -> Sim {
    change(&mut sim);
    sim
}

fn updated(spec: &str, node: &str, faults: Faults) -> Sim {
    faulty(fleet("{}"), node, faults).policy("all", spec)
}

/// Returns a fleet of 5,000 nodes in 60 pools, of which two need attention.
fn large() -> Api {
    let sim = steps(faulty(fleet("{}"), "h100-2", Faults { publishes: Some(7), ..Faults::default() }), 60);
    let mut policy = sim.policies[&"all".into()].clone();
    let status = policy.status.as_mut().expect("a status");
    let one = status.pools[0].clone();
    let counts = |total: u32, failed: u32| json!({"total": total, "ready": total - failed, "failed": failed, "progressing": 0, "excluded": 0, "optedOut": 0, "updating": 0, "outdated": 0, "leaving": 0});
    status.pools = (0..60)
        .map(|at| {
            let mut pool = one.clone();
            pool.name = format!("zone-{at:02}").as_str().into();
            let (total, failed) = if at < 10 { (85, u32::from(at == 7) * 3) } else { (83, 0) };
            pool.nodes = serde_json::from_value(counts(total, failed)).expect("counts");
            (pool.gpus.expected, pool.gpus.allocatable) = (total * 8, (total - failed) * 8);
            pool
        })
        .collect();
    status.nodes = serde_json::from_value(counts(5000, 3)).expect("counts");
    (status.gpus.expected, status.gpus.allocatable) = (40_000, 39_976);
    let attention = status.attention.first().expect("a node").clone();
    status.attention = (1..=3)
        .map(|at| {
            let mut attention = attention.clone();
            attention.pool = "zone-07".into();
            attention.node = format!("gpu-{at}.zone-07.eu-central.compute.internal.example.com").as_str().into();
            attention
        })
        .collect();
    let api = Api::new();
    api.add(&available("True")).add(&policy);
    api
}

/// Returns the fleet of docs/guides/kubectl.md: the driver of one pool is being updated while a GPU of another one fails.
fn documented() -> Sim {
    let spec = |driver: &str| {
        format!(
            "{{pools: [{{name: a100, match: {{models: [nvidia-a100-80gb]}}}}, {{name: h100, match: {{models: [nvidia-h100-80gb]}}, \
             driver: {{version: {driver}}}}}, {{name: k80, match: {{models: [nvidia-tesla-k80]}}}}]}}"
        )
    };
    let mut sim = Sim::new().policy("fleet", &spec("580.173.02"));
    for (pool, id, nodes) in [("a100", "20b5", 6), ("h100", "2330", 8), ("k80", "102d", 4)] {
        for node in 1..=nodes {
            sim.join(format!("{pool}-{node}").as_str(), id, 8);
        }
    }
    sim.settle();
    let xid = Cause {
        kind: CauseKind::Xid.into(),
        severity: Severity::Fatal,
        xid: Some(79),
        count: None,
        evidence: "NVRM: GPU has fallen off the bus".into(),
        since: Time(sim.now),
        recovering: false,
    };
    sim.report("a100-2").gpus[3].health = GpuHealth {
        state: HealthState::Unhealthy,
        action: Action::RebootNode.into(),
        since: Some(Time(sim.now)),
        causes: vec![xid],
        ..GpuHealth::default()
    };
    sim.faults.insert("a100-2".into(), Faults { publishes: Some(7), ..Faults::default() });
    sim.faults.insert("h100-4".into(), Faults { slow: 600, ..Faults::default() });
    steps(sim.policy("fleet", &spec("595.91.07")), 400)
}

/// Returns each fleet with its cluster and the time at which it is looked at.
fn fleets() -> Vec<(&'static str, Sim, Api)> {
    let slow = || Faults { slow: 600, ..Faults::default() };
    let missing = || Faults { missing_images: ["590.10.01".to_owned()].into(), ..Faults::default() };
    let of = |name, sim: Sim| {
        let api = cluster(&sim);
        (name, sim, api)
    };
    let fleets = vec![
        of("healthy", mixed()),
        of("installing", steps(faulty(Sim::new().policy("all", "{}").gpu_node("a", "2330", 8), "a", slow()), 90)),
        of("rolling", steps(updated(NEW, "h100-1", slow()), 90)),
        of("halted", steps(updated(NEW, "h100-1", missing()), 90)),
        of("paused", {
            let paused = "{defaults: {driver: {version: 590.10.01}}, rollout: {paused: true}}";
            steps(with(fleet("{}").policy("all", paused), |sim| sim.node_mut("h100-2").cordoned = true), 60)
        }),
        of("rejected", steps(mixed().policy("all", "{defaults: {driver: {version: 590.10.01}}}"), 60)),
        of("documented", documented()),
        of("unhealthy", {
            let sim = faulty(fleet("{}"), "h100-2", Faults { publishes: Some(7), ..Faults::default() });
            let unhealthy = |sim: &mut Sim| sim.report("h100-2").gpus[3].health.state = HealthState::Unhealthy;
            steps(with(sim, unhealthy), 60)
        }),
        of("overlapping", steps(fleet("{}").policy("newer", "{}").gpu_node("p100-1", "15f8", 4), 60)),
        of("no-policy", Sim::new().gpu_node("a", "2330", 8)),
        of("unobserved", fleet("{}").policy("all", NEW)),
        of("operator-down", fleet("{}")),
        of("no-operator", fleet("{}")),
        of("no-rights", fleet("{}")),
        of("unreadable", fleet("{}")),
        ("large", Sim::new(), large()),
    ];
    for (name, _, api) in &fleets {
        match *name {
            "operator-down" => _ = api.add(&available("False")),
            "no-operator" => api.delete("/apis/apps/v1/namespaces/gpu-operator/deployments/nodestack-gpu-operator"),
            "no-rights" => _ = api.forbid("deployments"),
            "unreadable" => {
                let next = json!({"metadata": {"name": "next"}, "spec": {"pools": "all"}});
                api.put("/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies/next", next);
            }
            _ => {}
        }
    }
    fleets
}

#[tokio::test]
async fn each_fleet_has_its_screen() {
    for (name, sim, api) in fleets() {
        let facts = read(&api.client(), "gpu-operator", None).await.expect("facts");
        let now = sim.now + SignedDuration::from_mins(10);
        let report = report(&facts, now);
        match name {
            "healthy" => assert!(report.is_good),
            "unobserved" | "unreadable" | "no-policy" | "installing" => assert!(!report.is_good, "{name}"),
            _ => {}
        }
        let shown = report.text(SCREEN, now);
        assert_narrow(&shown);
        let made = api.take();
        assert!(made.len() <= 2, "{name}: {made:?}");
        if name == "documented" {
            let page = include_str!("../../../../docs/guides/kubectl.md");
            assert!(
                page.contains(&format!("$ kubectl gpu-fleet status\n{shown}")),
                "the page shows another screen than\n{shown}"
            );
        }
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!(format!("status-{name}"), shown);
        });
    }
}

#[tokio::test]
async fn the_json_of_a_policy_has_states_names_and_times() {
    let missing = Faults { missing_images: ["590.10.01".to_owned()].into(), ..Faults::default() };
    let sim = steps(updated(NEW, "h100-1", missing), 90);
    let facts = read(&cluster(&sim).client(), "gpu-operator", Some("all")).await.expect("facts");
    let report = report(&facts, sim.now);
    assert_eq!(report.outcome(), Outcome::Bad);
    let json = serde_json::to_value(report).expect("JSON");
    let policy = &json["sections"][0][0];
    assert_eq!((&json["isGood"], &policy["name"]), (&Value::Bool(false), &"all".into()));
    assert_eq!(policy["cells"], json!(["Stalled", "2/3 nodes", "16/24 GPUs"]));
    let last = |of: &Value| of["lines"].as_array().expect("lines").last().expect("a line").clone();
    let pool = last(policy);
    assert_eq!((&pool["state"], &pool["name"]), (&"Bad".into(), &"nvidia-h100-80gb".into()));
    let node = last(&pool);
    assert_eq!(node["name"], "h100-1 DriverImageNotFound");
    assert!(node["since"].as_str().is_some_and(|since| since.starts_with("2026-01-01T")), "{node}");
    assert!(node.get("deadline").is_none() && node.get("lines").is_none(), "{node}");
}

#[tokio::test]
async fn without_the_right_to_list_policies_nothing_is_known() {
    let api = cluster(&fleet("{}"));
    api.forbid("clustergpupolicies");
    let error = read(&api.client(), "gpu-operator", None).await.expect_err("an error");
    assert!(
        matches!(error, ReadError::Forbidden(ref right) if right == "list clustergpupolicies.gpu.nodestack.dev"),
        "{error}"
    );
    api.fail(|_| true, Fault::Refused(StatusCode::SERVICE_UNAVAILABLE));
    let error = read(&api.client(), "gpu-operator", None).await.expect_err("an error");
    assert!(matches!(error, ReadError::Rejected(..) | ReadError::Unreachable(_)), "{error}");
}

#[tokio::test]
async fn colours_do_not_change_the_layout() {
    let sim = steps(updated(NEW, "h100-1", Faults { slow: 600, ..Faults::default() }), 90);
    let facts = read(&cluster(&sim).client(), "gpu-operator", None).await.expect("facts");
    let shown = |colour| report(&facts, sim.now).text(Screen { colour, unicode: true }, sim.now);
    let (plain, coloured) = (shown(false), shown(true));
    assert!(coloured.contains("\x1b[") && !plain.contains('\x1b'));
    let widths = |text: &str| text.lines().map(columns).collect::<Vec<_>>();
    assert_eq!(widths(&plain), widths(&coloured));
}
