//! Health: how the health of individual GPUs, as the probe reports it, affects nodes and policies, and how they
//! recover.

use crate::sim::{Faults, Sim};
use gpu_operator_crd::{
    Phase,
    health::{Action, Cause, CauseKind, HealthState, Severity},
    keys,
    reason::Reason,
};
use gpu_operator_plan::Plan;
use gpu_operator_plan::output::body::Kind;
use gpu_operator_plan::world::TaintFact;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use test_support::planned::Planned;

/// Lets the probe report a new health state for a GPU of node `a`.
pub(crate) fn set_health(sim: &mut Sim, gpu: usize, state: HealthState) {
    let now = Time(sim.now);
    let health = &mut sim.report("a").gpus[gpu].health;
    (health.state, health.since) = (state, Some(now.clone()));
    (health.action, health.causes) = (Action::None.into(), vec![]);
    if state == HealthState::Unhealthy {
        health.action = Action::RebootNode.into();
        health.causes = vec![Cause {
            kind: CauseKind::Xid.into(),
            severity: Severity::Fatal,
            xid: Some(79),
            count: None,
            evidence: String::new(),
            since: now,
            recovering: false,
        }];
    }
}

pub(crate) fn publishes(sim: &mut Sim, gpus: u32) {
    sim.faults.insert("a".into(), Faults { publishes: Some(gpus), ..Faults::default() });
}

fn reported(sim: &Sim) -> (Phase, Reason, String) {
    let status = sim.status("a");
    (status.phase, status.reason().expect("a reason"), status.message)
}

#[test]
fn an_unhealthy_gpu_is_allowed_only_by_min_healthy_gpus() {
    for (policy, phase, ready) in
        [("{}", Phase::DevicePlugin, "False"), ("{health: {minHealthyGPUs: 7}}", Phase::Ready, "True")]
    {
        let mut sim = Sim::settled_fleet(policy, &["a", "b"]);
        set_health(&mut sim, 3, HealthState::Unhealthy);
        publishes(&mut sim, 7);
        sim.settle();
        let (found, reason, message) = reported(&sim);
        assert_eq!((found, reason), (phase, Reason::GpuUnhealthy), "{policy}: {message}");
        assert!(message.contains("0000:09:00.0") && message.contains("Xid 79: reboot the node"), "{message}");
        assert_eq!(sim.condition("all", "Ready").0, ready, "{policy}");
        assert_eq!(sim.condition("all", "Degraded"), ("True".into(), "GpuUnhealthy".into()));
        let status = sim.policy_status("all");
        assert_eq!((status.gpus.unhealthy, status.attention[0].node.as_str()), (1, "a"));
        assert_eq!(sim.status("a").health, Some(HealthState::Unhealthy));
        let condition = sim.node("a").own_conditions[keys::HEALTH_CONDITION].clone();
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("False", "GpuUnhealthy"));
        assert!(sim.node("b").own_conditions.is_empty(), "a healthy node gets no condition");
    }
}

#[test]
fn health_that_is_reported_after_the_installation_is_written() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let status = sim.gpu_nodes.get_mut(&"a".into()).expect("a GpuNode").status.as_mut().expect("a status");
    status.health = None;
    status
        .conditions
        .iter_mut()
        .filter(|known| known.type_ == "Healthy")
        .for_each(|known| known.status = "Unknown".into());
    sim.settle();
    let status = sim.status("a");
    let condition = status.conditions.iter().find(|condition| condition.type_ == "Healthy").expect("a condition");
    assert_eq!((status.health, condition.status.as_str()), (Some(HealthState::Healthy), "True"));
}

#[test]
fn the_taint_changes_only_on_proof_and_goes_with_the_policy() {
    let tainted = |sim: &Sim| sim.node("a").taints.iter().any(|taint| taint.key == keys::UNHEALTHY_TAINT);
    let mut sim = Sim::settled_fleet("{health: {onUnhealthy: {taint: {}}, minHealthyGPUs: 1}}", &["a"]);
    for (state, wanted) in [
        (HealthState::Unhealthy, true),
        (HealthState::Recovering, true),
        (HealthState::Healthy, false),
        (HealthState::Unhealthy, true),
        (HealthState::Unknown, true),
    ] {
        set_health(&mut sim, 0, state);
        if state == HealthState::Unknown {
            sim.faults.insert("a".into(), Faults { no_probe: true, ..Faults::default() });
        }
        sim.settle();
        assert_eq!(tainted(&sim), wanted, "{state:?}");
    }
    assert_eq!(reported(&sim).1, Reason::HealthUnknown);
    sim.delete_policy("all");
    sim.settle();
    assert!(!tainted(&sim) && sim.node("a").own_conditions.is_empty(), "{:?}", sim.node("a"));
}

#[test]
fn the_taint_follows_the_policy_and_those_of_others_are_kept() {
    let others = || TaintFact { key: "example.com/gpu".into(), value: "ml".into(), effect: "NoExecute".into() };
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    sim.node_mut("a").taints = vec![others()];
    set_health(&mut sim, 0, HealthState::Unhealthy);
    for (on_unhealthy, expected) in [
        ("{}", ""),
        ("{taint: {}}", "gpu.nodestack.dev/unhealthy:NoSchedule"),
        ("{taint: {effect: PreferNoSchedule}}", "gpu.nodestack.dev/unhealthy:PreferNoSchedule"),
        ("{taint: {key: example.com/gpu}}", "example.com/gpu:NoSchedule"),
        ("{taint: {key: example.com/gpu, effect: NoExecute}}", ""),
        ("{taint: {key: example.com/other, effect: NoExecute}}", "example.com/other:NoExecute"),
    ] {
        sim.apply_policy("all", &format!("{{health: {{minHealthyGPUs: 1, onUnhealthy: {on_unhealthy}}}}}"));
        sim.settle();
        let node = sim.node("a");
        let own: Vec<_> = node.taints.iter().filter(|taint| **taint != others()).map(ToString::to_string).collect();
        assert_eq!(own.join(" "), expected, "{on_unhealthy}");
        assert_eq!(node.taints.len(), own.len() + 1, "{on_unhealthy}: {:?}", node.taints);
    }
    // The key changes while the health is uncertain: the taint is replaced, and the node stays tainted.
    set_health(&mut sim, 0, HealthState::Recovering);
    sim.apply_policy("all", "{health: {minHealthyGPUs: 1, onUnhealthy: {taint: {key: example.com/third}}}}");
    sim.settle();
    assert_eq!(sim.node("a").taints[1].to_string(), "example.com/third:NoSchedule");
    // A user removes the taint. It comes back as long as the GPU is unhealthy.
    set_health(&mut sim, 0, HealthState::Unhealthy);
    sim.node_mut("a").taints = vec![others()];
    sim.settle();
    assert_eq!(sim.node("a").taints.len(), 2);
    sim.node_mut("a").taints = vec![others()];
    sim.delete_policy("all");
    sim.settle();
    assert_eq!((sim.node("a").taints.as_slice(), &sim.node("a").own_taint), ([others()].as_slice(), &None));
}

#[test]
fn a_pool_replaces_its_policys_reaction() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    set_health(&mut sim, 0, HealthState::Unhealthy);
    let spec = |pool: &str| {
        format!(
            "{{defaults: {{tolerations: []}}, health: {{minHealthyGPUs: 1, onUnhealthy: {{taint: {{key: a/x}}}}}}, pools: [{{name: p{pool}}}]}}"
        )
    };
    for (pool, expected, tolerated) in [
        ("", "a/x:NoSchedule", "a/x gpu.nodestack.dev/unhealthy"),
        (", health: {minHealthyGPUs: 1}", "", "a/x gpu.nodestack.dev/unhealthy"),
        (
            ", health: {minHealthyGPUs: 1, onUnhealthy: {taint: {key: b/y}}}",
            "b/y:NoSchedule",
            "a/x b/y gpu.nodestack.dev/unhealthy",
        ),
    ] {
        sim.apply_policy("all", &spec(pool));
        sim.settle();
        let taints: Vec<_> = sim.node("a").taints.iter().map(ToString::to_string).collect();
        assert_eq!(taints.join(" "), expected, "{pool}");
        assert_eq!(reported(&sim).0, Phase::Ready, "{pool}: {:?}", reported(&sim));
        for set in sim.sets.keys() {
            let tolerations = sim.template(set).tolerations.iter().flatten();
            let keys: Vec<_> = tolerations.filter_map(|toleration| toleration.key.as_deref()).collect();
            assert_eq!(keys.join(" "), tolerated, "{pool}: {set}");
        }
    }
}

#[test]
fn a_plugin_that_withholds_a_recovered_gpu_is_restarted_once() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    set_health(&mut sim, 3, HealthState::Unhealthy);
    publishes(&mut sim, 7);
    sim.sleep(60);
    sim.settle();
    set_health(&mut sim, 3, HealthState::Healthy);
    let restarts = |sim: &Sim| {
        let events = sim.plans.iter().flat_map(Plan::events);
        events.filter(|event| event.reason == Reason::DevicePluginRestarted).count()
    };
    sim.settle();
    assert_eq!(restarts(&sim), 1);
    assert!(sim.plans.iter().any(|plan| plan.deleted(Kind::Pod).contains("device-plugin@a")));
    sim.sleep(3600);
    sim.settle();
    assert_eq!(restarts(&sim), 1, "the plugin still withholds the GPU, but is restarted only once");
    sim.faults.remove(&"a".into());
    sim.settle();
    assert_eq!(reported(&sim).1, Reason::AllGpusAllocatable);
}

#[test]
fn each_node_gets_the_health_rules_of_its_pool() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "1eb8", 1).policy(
        "all",
        "{health: {interval: 10s, xids: {fatal: [13]}}, pools: [{name: t4, match: {models: [t4]}, health: {cleanIntervals: 3}}]}",
    );
    sim.settle();
    let rules = |node: &str| sim.spec(node).health.clone().expect("rules");
    assert_eq!((rules("a").xids.fatal, rules("a").clean_intervals), (vec![13], None));
    assert_eq!((rules("b").xids.fatal, rules("b").clean_intervals), (vec![], Some(3)));
    let mut plain = Sim::settled_fleet("{}", &["a"]);
    plain.settle();
    assert_eq!(plain.spec("a").health, None, "without rules, the probe uses its defaults");
}

#[test]
fn missing_gpus_are_named_in_the_condition() {
    let mut sim = Sim::new().gpu_node("a", "2330", 6).gpu_node("b", "2330", 8);
    sim.apply_policy("all", "{pools: [{name: p, gpusPerNode: 8}]}");
    sim.settle();
    let condition = sim.node("a").own_conditions[keys::HEALTH_CONDITION].clone();
    let said = (condition.reason.as_str(), condition.message.as_str());
    assert_eq!(said, ("GpuUnhealthy", "2 GPUs are missing from the PCI bus"));
}
