//! The forecast is what then happens: which nodes are updated in which wave, and which pods are evicted for it.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{ClusterGpuPolicy, NodeName, gpunode::RolloutStep, keys, reason::Reason};
use gpu_operator_plan::{
    forecast::{DisruptionBudget, Forecast, Inputs, Outcome, forecast},
    output::body::Body,
    world::{GpuPod, PodOwner},
};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;

use crate::{robust::rollout_spec, sim::Sim};

const OLD: &str = "595.91.07";
const NEW: &str = "590.10.01";

/// Returns what a change of the driver would do to a fleet.
fn of_driver(sim: &Sim, strategy: &str) -> Forecast {
    of_spec(sim, &rollout_spec(strategy, NEW), &[])
}

/// Returns what this spec of policy `all` would do.
fn of_spec(sim: &Sim, spec: &str, budgets: &[DisruptionBudget]) -> Forecast {
    let mut world = sim.world();
    let requests = world.gpu_requests();
    world.gpu_pods = sim.nodes.keys().map(|node| (node.clone(), sim.gpu_pods_on(node, &requests))).collect();
    let inputs = Inputs { settings: &sim.settings, catalogue: &sim.catalogue, world: &world, budgets, now: sim.now };
    let policy = ClusterGpuPolicy::new("all", serde_yaml::from_str(spec).expect("a spec"));
    let [forecast] = forecast(inputs, &[policy]).try_into().expect("one policy");
    forecast
}

/// Returns the budget of the pods with a label `app` that allows this number of evictions.
fn budget(app: &str, allowed: i32) -> DisruptionBudget {
    let text = format!(
        "{{metadata: {{name: {app}, namespace: team}}, spec: {{selector: {{matchLabels: {{app: {app}}}}}}}, \
         status: {{disruptionsAllowed: {allowed}, currentHealthy: 2, desiredHealthy: 2, expectedPods: 2}}}}"
    );
    let budget: PodDisruptionBudget = serde_yaml::from_str(&text).expect("a budget");
    DisruptionBudget::of(&budget).expect("a selector")
}

/// Returns a settled fleet with the old driver, and a pod of a ReplicaSet, `team/web-NODE`, on each node.
fn fleet(nodes: &[&str], strategy: &str) -> Sim {
    let mut sim = Sim::settled_fleet(&rollout_spec(strategy, OLD), nodes);
    for node in nodes {
        let pod = format!("team/web-{node}");
        let labels = BTreeMap::from([("app".to_owned(), format!("web-{node}"))]);
        sim.pod_facts.insert(pod.clone(), GpuPod { labels, ..GpuPod::default() });
        sim.gpu_pods.insert((*node).into(), vec![pod]);
    }
    sim
}

/// A node, its wave, and the pods that are evicted.
type Turn = (NodeName, u32, Vec<String>);

fn turns(forecast: &Forecast) -> BTreeSet<Turn> {
    let updates = forecast.updates.iter().filter_map(|update| {
        let evicted = update.pods.iter().filter(|pod| pod.outcome == Outcome::Evicted);
        // Nothing is evicted as long as a pod blocks the update.
        let evicted = evicted.filter(|_| update.blocked_by.is_none());
        Some((update.node.clone(), update.wave?, evicted.map(|pod| pod.pod.clone()).collect()))
    });
    updates.collect()
}

/// Returns the turns of a fleet within this number of seconds, each node's first.
fn run(sim: &mut Sim, seconds: u32) -> BTreeSet<Turn> {
    let (mut waves, mut moving, mut ended) = (BTreeMap::<NodeName, u32>::new(), BTreeSet::new(), 0);
    let before = sim.plans.len();
    let nodes: Vec<_> = sim.nodes.keys().cloned().collect();
    let on = sim.gpu_pods.clone();
    for _ in 0..seconds {
        sim.steps(1);
        let now: BTreeSet<_> = nodes.iter().filter(|node| sim.is_moving((*node).clone())).cloned().collect();
        ended = moving.difference(&now).map(|node| waves[node]).fold(ended, u32::max);
        for node in now.difference(&moving) {
            waves.entry(node.clone()).or_insert(ended + 1);
        }
        moving = now;
    }
    let writes = sim.plans[before..].iter().flat_map(|plan| &plan.writes);
    // An eviction that a budget forbids is none.
    let evicted: BTreeSet<_> = writes
        .filter(|write| matches!(write.body, Body::Eviction(_)) && !sim.budgets.contains_key(&write.target.name))
        .map(|write| write.target.name.clone())
        .collect();
    let pods = |node| on.get(node).into_iter().flatten().filter(|pod| evicted.contains(*pod)).cloned().collect();
    waves.iter().map(|(node, wave)| (node.clone(), *wave, pods(node))).collect()
}

#[test]
fn a_forecast_is_what_happens() {
    let strategy = "{maxParallel: 2, maxUnavailable: 100%, gpuPods: {mode: Evict, timeout: 10m}}";
    let mut sim = fleet(&["a", "b", "c", "d", "e", "f", "g", "h"], strategy);
    let refused = "The disruption budget web-b needs 2 healthy pods and has 2 currently";
    sim.budgets.insert("team/web-b".into(), refused.into());
    sim.pod_facts.insert("team/web-c".into(), GpuPod { owner: PodOwner::None, ..GpuPod::default() });
    sim.node_mut("d").cordoned = true;
    sim.node_mut("e").labels.insert(keys::MANAGED.into(), "false".into());
    sim.steps(5);
    let forecast = of_spec(&sim, &rollout_spec(strategy, NEW), &[budget("web-a", 1), budget("web-b", 0)]);
    let turn = |node: &str, wave, pods: &[&str]| {
        (NodeName::from(node), wave, pods.iter().map(|pod| (*pod).to_owned()).collect::<Vec<_>>())
    };
    let expected = BTreeSet::from([
        turn("a", 1, &["team/web-a"]),
        turn("d", 1, &["team/web-d"]),
        turn("b", 2, &[]),
        turn("c", 2, &[]),
        turn("f", 3, &["team/web-f"]),
        turn("g", 3, &["team/web-g"]),
        turn("h", 4, &["team/web-h"]),
    ]);
    assert_eq!(turns(&forecast), expected, "{forecast:#?}");
    let update = |node: &str| forecast.updates.iter().find(|update| update.node == node).unwrap();
    let blocked = |node: &str| update(node).blocked_by.clone().unwrap_or_default();
    assert!(blocked("b").contains("PodDisruptionBudget web-b allows no eviction"), "{}", blocked("b"));
    assert!(blocked("c").contains("barePods: Evict"), "{}", blocked("c"));
    assert!(update("d").cordoned && !update("d").cordon && update("a").cordon);
    assert_eq!(update("f").not_before, Some(sim.now + std::time::Duration::from_mins(10)), "the others hold the slots");
    assert_eq!(forecast.excluded, ["e"]);
    assert!(forecast.waiting.is_empty() && forecast.leaving.is_empty(), "{forecast:#?}");
    let image = |version: &str| Some(format!("nvcr.io/nvidia/driver:{version}-ubuntu22.04"));
    assert_eq!((&update("a").stages[0].from, &update("a").stages[0].to), (&image(OLD), &image(NEW)));
    // And now it is applied.
    sim.law = Some(crate::law::holds);
    sim.apply_policy("all", &rollout_spec(strategy, NEW));
    assert_eq!(run(&mut sim, 1100), expected);
}

#[test]
fn what_changes_nothing_is_an_empty_forecast() {
    let sim = fleet(&["a", "b"], "{}");
    let forecast = of_spec(&sim, &rollout_spec("{}", OLD), &[]);
    assert!(forecast.is_empty() && forecast.problems.is_empty(), "{forecast:#?}");
    assert_eq!(forecast.nodes, 2);
}

#[test]
fn what_disrupts_nothing_is_listed_apart() {
    let sim = fleet(&["a", "b"], "{}");
    let spec = format!(
        "{{rollout: {{}}, nodeLabels: [{{key: accelerator}}], health: {{onUnhealthy: {{taint: {{effect: NoSchedule}}}}}}, \
         defaults: {{driver: {{version: {OLD}, resources: {{requests: {{cpu: 50m}}}}}}}}}}"
    );
    let forecast = of_spec(&sim, &spec, &[]);
    assert!(forecast.updates.is_empty() && forecast.waiting.is_empty(), "{forecast:#?}");
    let [set, label] = &forecast.changes[..] else { panic!("{:#?}", forecast.changes) };
    assert!(set.starts_with("DaemonSet driver-") && set.ends_with("when they are created next"), "{set}");
    assert_eq!(label, "label accelerator=nvidia-h100-80gb on 2 nodes");
}

#[test]
fn the_mode_decides_what_becomes_of_pods() {
    for (mode, outcome) in [("Await", Some(Outcome::Awaited)), ("Evict", Some(Outcome::Evicted)), ("Leave", None)] {
        let sim = fleet(&["a"], "{}");
        let forecast = of_driver(&sim, &format!("{{gpuPods: {{mode: {mode}}}}}"));
        let pods: Vec<_> = forecast.updates.iter().flat_map(|update| &update.pods).collect();
        assert_eq!(
            pods.first().map(|pod| (pod.pod.as_str(), pod.outcome)),
            outcome.map(|outcome| ("team/web-a", outcome))
        );
        let waiting: Vec<_> = forecast.waiting.iter().map(|waiting| (waiting.reason, &waiting.pods[..])).collect();
        let in_use = (Reason::GpuPodsInUse, &["team/web-a".to_owned()][..]);
        assert_eq!(waiting, if outcome.is_none() { vec![in_use] } else { vec![] }, "{mode}");
    }
}

#[test]
fn nodes_that_are_not_updated_say_why() {
    let mut sim = fleet(&["a", "b"], "{}");
    sim.gpu_pods.clear();
    let reasons = |sim: &Sim, strategy: &str| {
        let forecast = of_driver(sim, strategy);
        let waiting = forecast.waiting.into_iter();
        waiting.map(|waiting| (waiting.node.to_string(), waiting.message)).collect::<Vec<_>>()
    };
    let [(a, paused), (b, _)] = &reasons(&sim, "{paused: true}")[..] else { panic!("two nodes") };
    assert_eq!((a.as_str(), b.as_str()), ("a", "b"));
    assert!(paused.contains("rollout.paused"), "{paused}");
    sim.settings.evicts_pods = false;
    let [(_, halted), _] = &reasons(&sim, "{gpuPods: {mode: Evict}}")[..] else { panic!("two nodes") };
    assert!(halted.contains("condition Stalled"), "{halted}");
    let forecast = of_driver(&sim, "{gpuPods: {mode: Evict}}");
    assert!(forecast.problems[0].message.contains("operator.evictPods: true"), "{:?}", forecast.problems);
    sim.node_mut("b").ready = false;
    sim.steps(5);
    let [(b, away)] = &reasons(&sim, "{maxUnavailable: 100%}")[..] else { panic!("one node") };
    assert_eq!(b, "b");
    assert!(away.contains("not Ready"), "{away}");
    let old = "{pools: [{name: p, driver: {version: 390.157}}]}";
    let waiting = of_spec(&sim, old, &[]).waiting;
    assert!(waiting.iter().any(|waiting| waiting.reason == Reason::DriverUnsupported), "{waiting:#?}");
}

#[test]
fn times_that_updates_wait_for_are_named() {
    let mut sim = fleet(&["a", "b", "c"], "{}");
    sim.gpu_pods.clear();
    let waves = |sim: &Sim, strategy: &str| {
        let forecast = of_driver(sim, strategy);
        assert!(forecast.waiting.is_empty(), "{:#?}", forecast.waiting);
        let wave = |wave| {
            let of_wave: Vec<_> = forecast.updates.iter().filter(|update| update.wave == Some(wave)).collect();
            let after =
                of_wave.iter().filter_map(|update| update.not_before).map(|time| (time - sim.now).get_seconds());
            (of_wave.len(), after.collect::<Vec<_>>())
        };
        [wave(1), wave(2), wave(3), wave(4)]
    };
    let all = "maxUnavailable: 100%";
    let canary = waves(&sim, &format!("{{maxParallel: 2, {all}, canary: {{nodes: 1, soak: 1h}}}}"));
    assert_eq!(canary, [(1, vec![]), (2, vec![3600, 3600]), (0, vec![]), (0, vec![])]);
    // The clock of the simulator begins on a Thursday, at midnight.
    let opens = "windows: [{days: [Friday], start: \"00:00\", duration: 2h}]";
    let [(one, after), (two, _), (three, _), _] = waves(&sim, &format!("{{{all}, {opens}}}"));
    assert_eq!((one, two, three), (1, 1, 1), "maxParallel is 1");
    assert!(after[0] > 23 * 3600 && after[0] <= 24 * 3600, "{after:?}");
}

#[test]
fn nodes_join_and_leave_without_a_turn() {
    let mut sim = fleet(&["a", "b"], "{}");
    sim.join("new", "2330", 8);
    sim.node_mut("b").labels.insert("team".into(), "b".into());
    let not_b = format!(
        "{{nodeSelector: {{matchExpressions: [{{key: team, operator: DoesNotExist}}]}}, \
         defaults: {{driver: {{version: {OLD}}}}}}}"
    );
    let forecast = of_spec(&sim, &not_b, &[]);
    assert_eq!(forecast.leaving, ["b"]);
    let [new] = &forecast.updates[..] else { panic!("{:#?}", forecast.updates) };
    assert_eq!((new.node.as_str(), new.wave, new.stages[0].from.as_ref()), ("new", None, None));
}

#[test]
fn an_update_that_has_begun_comes_first() {
    let mut sim = fleet(&["a", "b"], "{gpuPods: {mode: Evict}}");
    sim.gpu_pods.clear();
    sim.apply_policy("all", &rollout_spec("{gpuPods: {mode: Evict}}", NEW));
    for step in [RolloutStep::Release, RolloutStep::Replace] {
        let is_there = |sim: &Sim| sim.spec("a").rollout.as_ref().is_some_and(|rollout| rollout.step == step);
        for _ in 0..300 {
            if !is_there(&sim) {
                sim.steps(1);
            }
        }
        assert!(is_there(&sim), "{step:?}");
        let forecast = of_driver(&sim, "{gpuPods: {mode: Evict}}");
        let updates = forecast.updates.iter();
        let updates = updates.map(|update| (update.node.as_str(), update.wave, update.underway, update.stages.len()));
        assert_eq!(
            updates.collect::<Vec<_>>(),
            [("a", Some(1), true, 3), ("b", Some(2), false, 3)],
            "{step:?}: {forecast:#?}"
        );
    }
}

#[test]
fn several_budgets_for_a_pod_block_its_eviction() {
    let sim = fleet(&["a"], "{}");
    let evict = rollout_spec("{gpuPods: {mode: Evict}}", NEW);
    for (budgets, blocked) in [
        (vec![budget("web-a", 0)], Some("allows no eviction at present")),
        (vec![budget("web-a", 1)], None),
        (vec![budget("web-b", 0)], None),
        (vec![budget("web-a", 1), budget("web-a", 1)], Some("several PodDisruptionBudgets select: web-a, web-a")),
    ] {
        let forecast = of_spec(&sim, &evict, &budgets);
        let by = forecast.updates[0].blocked_by.clone();
        assert_eq!(by.is_some(), blocked.is_some(), "{by:?}");
        assert!(blocked.is_none_or(|words| by.unwrap_or_default().contains(words)), "{forecast:#?}");
    }
}
