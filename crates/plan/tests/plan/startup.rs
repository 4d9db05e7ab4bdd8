//! How schedulers learn that a node is ready: the startup taint, and the conditions of the Node.

use gpu_operator_crd::{Phase, Reason, health::HealthState, keys};
use gpu_operator_plan::{
    loop_memory::LoopState,
    output::body::Body,
    pass::Pass,
    time::Uptime,
    world::{OwnCondition, TaintFact},
};
use k8s_openapi::api::core::v1::Toleration;
use test_support::planned::Planned;

use crate::{
    coexistence::static_plugin,
    health::{publishes, set_health},
    properties::events::taint_at_start,
    sim::{Faults, Sim},
};

const CONDITION: &str = "{readiness: {nodeCondition: true}}";
const TAINT: &str = "{readiness: {startupTaint: {}}}";

fn taints(sim: &Sim, node: &str) -> String {
    sim.node(node).taints.iter().map(TaintFact::to_string).collect::<Vec<_>>().join(" ")
}

fn ready(sim: &Sim) -> Option<(&str, &str)> {
    let condition = sim.node("a").own_conditions.get(keys::READY_CONDITION)?;
    Some((condition.status.as_str(), condition.reason.as_str()))
}

#[test]
fn the_condition_repeats_ready_until_the_field_is_off() {
    let mut sim = Sim::settled_fleet(CONDITION, &["a"]);
    assert_eq!(ready(&sim), Some(("True", "AllGpusAllocatable")));
    publishes(&mut sim, 3);
    sim.settle();
    assert_eq!(ready(&sim), Some(("False", "WaitingForAllocatable")));
    sim.faults.clear();
    sim.node_mut("a").ready = false;
    sim.settle();
    assert_eq!(ready(&sim), Some(("Unknown", "NodeNotReady")));
    sim.node_mut("a").ready = true;
    sim.settle();
    assert_eq!(ready(&sim), Some(("True", "AllGpusAllocatable")));
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    sim.reboot("a", 0);
    sim.step();
    assert_eq!(ready(&sim), Some(("Unknown", "WaitingForReport")), "its probe has not reported since the boot");
    sim.faults.clear();
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!((ready(&sim), sim.status("a").phase), (None, Phase::Ready));
}

#[test]
fn the_condition_goes_with_the_policy_and_when_a_node_leaves_it() {
    for (leaves, what) in [
        (Sim::delete_policy as fn(&mut Sim, &'static str), "the policy is deleted"),
        (|sim: &mut Sim, _| sim.label("a", keys::MANAGED, Some("false")), "the node is excluded"),
        (|sim, policy| sim.apply_policy(policy, "{nodeSelector: {matchLabels: {no: node}}}"), "it is not selected"),
    ] {
        let mut sim = Sim::settled_fleet(CONDITION, &["a"]);
        assert!(ready(&sim).is_some());
        leaves(&mut sim, "all");
        sim.settle();
        sim.sleep(120);
        sim.settle();
        assert!(sim.node("a").own_conditions.is_empty(), "{what}");
    }
}

#[test]
fn both_conditions_are_one_write() {
    let mut sim = Sim::settled_fleet("{health: {minHealthyGPUs: 100%}, readiness: {nodeCondition: true}}", &["a"]);
    let before = sim.plans.len();
    set_health(&mut sim, 0, HealthState::Unhealthy);
    publishes(&mut sim, 7);
    sim.settle();
    let writes = sim.plans[before..].iter().flat_map(|plan| plan.conditions().into_values().cloned());
    let written: Vec<_> = writes.map(|conditions| conditions.into_keys().collect::<Vec<_>>()).collect();
    assert_eq!(written, [keys::NODE_CONDITIONS]);
    // What is not written this time stays: an apply removes what its manager applied before and does not repeat.
    publishes(&mut sim, 6);
    sim.settle();
    assert_eq!(sim.node("a").own_conditions.len(), 2);
    sim.apply_policy("all", "{}");
    sim.settle();
    let left: Vec<_> = sim.node("a").own_conditions.keys().copied().collect();
    assert_eq!(left, [keys::HEALTH_CONDITION]);
}

#[test]
fn a_condition_stays_while_nothing_is_known_of_the_gpus() {
    for policy in ["{health: {minHealthyGPUs: 1}}", "{health: {minHealthyGPUs: 1}, readiness: {nodeCondition: true}}"] {
        let mut sim = Sim::settled_fleet(policy, &["a"]);
        set_health(&mut sim, 0, HealthState::Unhealthy);
        sim.settle();
        sim.gpu_nodes.clear();
        assert!(sim.plan().conditions().is_empty(), "{policy}: {:?}", sim.plan().conditions());
    }
}

#[test]
fn the_transition_of_health_is_that_of_its_severity() {
    use HealthState::{Degraded, Healthy, Recovering, Unhealthy};
    let mut sim = Sim::settled_fleet("{health: {minHealthyGPUs: 1}}", &["a"]);
    let condition = |sim: &Sim| sim.node("a").own_conditions[keys::HEALTH_CONDITION].clone();
    set_health(&mut sim, 0, Unhealthy);
    sim.settle();
    let OwnCondition { mut since, .. } = condition(&sim);
    // The states of two GPUs, the reason, and whether the time changes.
    for (states, reason, changes) in [
        ([Unhealthy, Unhealthy], "GpuUnhealthy", false),
        ([Degraded, Healthy], "GpuDegraded", true),
        ([Degraded, Degraded], "GpuDegraded", false),
        ([Recovering, Healthy], "GpuDegraded", false),
        ([Healthy, Healthy], "AllGpusHealthy", true),
        ([Healthy, Degraded], "GpuDegraded", true),
        ([Unhealthy, Degraded], "GpuUnhealthy", true),
    ] {
        sim.sleep(100);
        states.into_iter().enumerate().for_each(|(gpu, state)| set_health(&mut sim, gpu, state));
        sim.settle();
        let now = condition(&sim);
        assert_eq!((now.reason.as_str(), now.since > since), (reason, changes), "{states:?}");
        since = now.since;
    }
}

#[test]
fn startup_taints_of_the_policys_key_are_removed() {
    let own = ["gpu.nodestack.dev/startup=true:NoSchedule", "gpu.nodestack.dev/startup=true:NoExecute"].join(" ");
    let autoscaler = "startup-taint.cluster-autoscaler.kubernetes.io/gpu=true:NoSchedule";
    let named = "example.com/startup=true:PreferNoSchedule";
    let others = "nvidia.com/gpu=true:NoSchedule";
    for (startup, left) in [
        ("{}", format!("{autoscaler} {named} {others}")),
        ("{key: startup-taint.cluster-autoscaler.kubernetes.io/gpu}", format!("{own} {named} {others}")),
        ("{key: example.com/startup}", format!("{own} {autoscaler} {others}")),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        for (key, effect) in [
            (keys::STARTUP_TAINT, "NoSchedule"),
            (keys::STARTUP_TAINT, "NoExecute"),
            ("startup-taint.cluster-autoscaler.kubernetes.io/gpu", "NoSchedule"),
            ("example.com/startup", "PreferNoSchedule"),
            ("nvidia.com/gpu", "NoSchedule"),
        ] {
            taint_at_start(sim.node_mut("a"), key, effect);
        }
        sim.apply_policy("all", "{}");
        sim.settle();
        assert_eq!(sim.node("a").taints.len(), 5, "without a startup taint in the policy");
        sim.apply_policy("all", &format!("{{readiness: {{startupTaint: {startup}}}}}"));
        sim.settle();
        assert_eq!(taints(&sim, "a"), left, "{startup}");
    }
}

#[test]
fn a_startup_taint_is_removed_in_the_pass_that_finds_ready() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", TAINT);
    taint_at_start(sim.node_mut("a"), keys::STARTUP_TAINT, "NoSchedule");
    publishes(&mut sim, 7);
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::DevicePlugin);
    assert_eq!(taints(&sim, "a"), "gpu.nodestack.dev/startup=true:NoSchedule", "it is not ready");
    sim.faults.clear();
    sim.surroundings();
    let mut plan = sim.plan();
    assert!(plan.node_statuses()[&"a".into()].is_ready());
    let first = plan.take_writes().into_iter().flatten().next().expect("a write");
    assert!(matches!(&first.body, Body::Taints(write) if write.lifted.is_some()), "{first}");
}

#[test]
fn passes_are_brief_while_a_startup_taint_keeps_pods_away() {
    let ends = |sim: &Sim| {
        let mut carry = LoopState::default();
        let (pass, _) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, Uptime::ZERO));
        assert_eq!(pass.ends(), Some(Uptime::from_secs(10)), "the answers to the last writes are waited for");
        pass.begins_until().expect("it asks nothing").as_secs()
    };
    let mut sim = Sim::settled_fleet(TAINT, &["a"]);
    assert_eq!(ends(&sim), 7);
    sim.faults.insert("b".into(), Faults { slow: 8, ..Faults::default() });
    sim.join("b", "2330", 8);
    taint_at_start(sim.node_mut("b"), keys::STARTUP_TAINT, "NoSchedule");
    sim.run(3);
    assert!(!sim.status("b").is_ready() && sim.status("b").reason().is_none_or(|reason| !reason.is_failure()));
    assert_eq!(ends(&sim), 1);
    sim.settle();
    assert_eq!((taints(&sim, "b"), ends(&sim)), (String::new(), 7));
    // One that has failed is not waited for.
    sim.join("c", "2330", 8);
    taint_at_start(sim.node_mut("c"), keys::STARTUP_TAINT, "NoSchedule");
    sim.faults.insert("c".into(), Faults { driver_crash: Some("no compiler".into()), ..Faults::default() });
    sim.settle();
    assert!(sim.status("c").reason().is_some_and(Reason::is_failure), "{:?}", sim.status("c"));
    assert_eq!(ends(&sim), 7);
}

#[test]
fn a_status_of_an_earlier_boot_removes_no_startup_taint() {
    let mut sim = Sim::settled_fleet(TAINT, &["a"]);
    sim.faults.insert("a".into(), Faults { mute_probe: true, ..Faults::default() });
    let allocatable = sim.node("a").allocatable.clone();
    sim.reboot("a", 0);
    // Kubelet has not yet noticed that the device plugin is gone.
    let node = sim.node_mut("a");
    node.allocatable = allocatable;
    taint_at_start(node, keys::STARTUP_TAINT, "NoSchedule");
    assert!(sim.status("a").is_ready(), "the status is that of the boot before");
    assert_eq!(sim.plan().taints().len(), 0);
    sim.faults.clear();
    sim.settle();
    assert_eq!(taints(&sim, "a"), "");
}

#[test]
fn nodes_with_other_stacks_lose_their_startup_taint_as_well() {
    let start = |sim: &mut Sim, node: &str| taint_at_start(sim.node_mut(node), keys::STARTUP_TAINT, "NoSchedule");
    let mut mixed = Sim::new();
    mixed.join_mixed("a", &["2330", "1eb8"]);
    let mut preinstalled = Sim::new().gpu_node("a", "2330", 8);
    preinstalled.host_driver("a", "580.1.1", true);
    let mut external = Sim::new().gpu_node("a", "2330", 8);
    external.host_driver("a", "580.1.1", true);
    external.label("a", "static", Some("yes"));
    static_plugin(&mut external);
    for (mut sim, reason) in
        [(mixed, "MixedModels"), (preinstalled, "AllGpusAllocatable"), (external, "ForeignDevicePlugin")]
    {
        start(&mut sim, "a");
        sim.apply_policy("all", TAINT);
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason().map(Reason::as_str)), (Phase::Ready, Some(reason)));
        assert_eq!(taints(&sim, "a"), "", "{reason}");
    }
}

#[test]
fn the_operators_pods_tolerate_the_startup_taint() {
    let startup =
        "startupTaint: {key: startup-taint.cluster-autoscaler.kubernetes.io/gpu}, validation: {mode: OnInstall}";
    for (tolerations, expected) in
        [("", 0), ("tolerations: []", 1), ("tolerations: [{key: dedicated, operator: Exists}]", 1)]
    {
        let spec = |readiness: &str| format!("{{defaults: {{{tolerations}}}, readiness: {{{readiness}}}}}");
        let mut sim = Sim::settled_fleet(&spec("validation: {mode: OnInstall}"), &["before"]);
        let plans = sim.plans.len();
        let pods: Vec<_> = sim.pods.values().map(|pod| (pod.name.clone(), pod.created)).collect();
        sim.apply_policy("all", &spec(startup));
        sim.join("a", "2330", 8);
        taint_at_start(sim.node_mut("a"), "startup-taint.cluster-autoscaler.kubernetes.io/gpu", "NoSchedule");
        sim.settle();
        assert_eq!((sim.status("a").phase, taints(&sim, "a")), (Phase::Ready, String::new()));
        let tolerates = |tolerations: &[Toleration]| {
            let of_key = |toleration: &&Toleration| {
                toleration.key.as_deref() == Some("startup-taint.cluster-autoscaler.kubernetes.io/gpu")
            };
            tolerations.iter().filter(of_key).count()
        };
        for set in sim.sets.keys() {
            let found = tolerates(sim.template(set).tolerations.as_deref().unwrap_or_default());
            assert_eq!(found, expected, "{set}");
        }
        let tests: Vec<_> = sim.plans[plans..].iter().flat_map(|plan| plan.tests().into_values()).collect();
        assert!(!tests.is_empty());
        for pod in tests {
            let tolerations = pod.spec.as_ref().and_then(|spec| spec.tolerations.as_deref()).unwrap_or_default();
            assert_eq!(tolerates(tolerations), expected, "{pod:?}");
        }
        let stays = |(name, created): &(String, _)| sim.pods.get(name).is_some_and(|pod| pod.created == *created);
        assert!(pods.iter().all(stays), "the template changes in place");
    }
}

#[test]
fn a_slow_installation_writes_the_condition_a_few_times() {
    let mut sim = Sim::settled_fleet(CONDITION, &["b"]);
    sim.faults.insert("a".into(), Faults { slow: 8, ..Faults::default() });
    sim.join("a", "2330", 8);
    sim.settle_with(&mut LoopState::default());
    assert_eq!(ready(&sim), Some(("True", "AllGpusAllocatable")));
    assert!((2..=3).contains(&sim.writes["health/a"]), "{:?}", sim.writes);
}
