//! What holds for every fleet, every policy and every order of events. A failure prints the events that led to it,
//! shrunk, and its seed is kept in `properties.proptest-regressions`, so that it replays.
#![allow(missing_docs, clippy::expect_used, reason = "tests")]

mod sim;

use std::collections::BTreeMap;

use gpu_operator_crd::{keys, policy::Stage};
use proptest::{prelude::*, test_runner::RngSeed};
use sim::{Faults, Sim};

/// PCI ids of K80, P100, T4, H100 and B200.
const MODELS: [&str; 5] = ["102d", "15f9", "1eb8", "2330", "2901"];
/// Policies that a user might go through, with the keys that they publish.
const SPECS: [&str; 5] = [
    "{}",
    "{nodeLabels: [accelerator]}",
    "{pools: [{name: hopper, match: {models: [nvidia-h100-80gb]}, driver: {version: 590.10.01}, nodeLabels: [{key: gpu/nividia, value: P630}]}]}",
    "{defaults: {driver: {version: 580.173.02}, devicePlugin: {image: {tag: v0.21.0}}}}",
    "{readiness: {minReadyNodes: 50%}, pools: [{name: some, match: {nodeSelector: {matchLabels: {zone: a}}}, driver: {source: Preinstalled}}]}",
];
const KEYS: [&str; 2] = ["accelerator", "gpu/nividia"];

/// Something that happens to a fleet.
#[derive(Clone, Debug)]
enum Happens {
    Joins(usize, u32),
    Leaves(usize),
    GoesAway(usize),
    ComesBack(usize),
    IsCordoned(usize, bool),
    MovesZone(usize),
    GetsHostDriver(usize),
    LosesGpu(usize),
    Breaks(usize, u8),
    Heals(usize),
    GetsGpuPod(usize),
    LosesGpuPod(usize),
    Policy(usize),
    Time(u32),
    /// The operator is killed after so many writes of a pass, and started again.
    Killed(usize),
}

fn happens() -> impl Strategy<Value = Happens> {
    let node = || 0..5_usize;
    prop_oneof![
        3 => (0..MODELS.len(), 1..9_u32).prop_map(|(model, count)| Happens::Joins(model, count)),
        1 => node().prop_map(Happens::Leaves),
        1 => node().prop_map(Happens::GoesAway),
        2 => node().prop_map(Happens::ComesBack),
        1 => (node(), any::<bool>()).prop_map(|(node, cordoned)| Happens::IsCordoned(node, cordoned)),
        1 => node().prop_map(Happens::MovesZone),
        1 => node().prop_map(Happens::GetsHostDriver),
        1 => node().prop_map(Happens::LosesGpu),
        2 => (node(), 0..5_u8).prop_map(|(node, how)| Happens::Breaks(node, how)),
        3 => node().prop_map(Happens::Heals),
        2 => node().prop_map(Happens::GetsGpuPod),
        2 => node().prop_map(Happens::LosesGpuPod),
        3 => (0..SPECS.len()).prop_map(Happens::Policy),
        6 => (1..30_u32).prop_map(Happens::Time),
        3 => (0..12_usize).prop_map(Happens::Killed),
    ]
}

fn fleet() -> Sim {
    let mut sim = Sim::new().policy("all", "{}");
    sim.join("n0", "2330", 8);
    sim.join("n1", "15f9", 4);
    sim.join_plain("cpu");
    sim
}

/// The name of the n-th GPU node.
fn nth(sim: &Sim, index: usize) -> Option<String> {
    let names: Vec<_> = sim.gpu_nodes.keys().filter(|name| sim.nodes.contains_key(*name)).collect();
    (!names.is_empty()).then(|| names[index % names.len()].clone())
}

fn happen(sim: &mut Sim, event: &Happens) {
    match event {
        Happens::Joins(model, count) if sim.nodes.len() < 8 => {
            let name = format!("n{}", sim.nodes.len() * 10 + model);
            if !sim.nodes.contains_key(&name) {
                sim.join(&name, MODELS[*model], *count);
            }
        }
        Happens::Joins(..) => {}
        Happens::Policy(index) => sim.apply_policy("all", SPECS[*index]),
        Happens::Time(steps) => (0..*steps).for_each(|_| checked_step(sim)),
        Happens::Killed(writes) => {
            let plan = sim.plan();
            sim.carry_out_first(&plan, *writes);
            checked_step(sim);
        }
        Happens::Leaves(index)
        | Happens::GoesAway(index)
        | Happens::ComesBack(index)
        | Happens::IsCordoned(index, _)
        | Happens::MovesZone(index)
        | Happens::GetsHostDriver(index)
        | Happens::LosesGpu(index)
        | Happens::Breaks(index, _)
        | Happens::Heals(index)
        | Happens::GetsGpuPod(index)
        | Happens::LosesGpuPod(index) => {
            if let Some(name) = nth(sim, *index) {
                happen_to(sim, &name, event);
            }
        }
    }
}

fn happen_to(sim: &mut Sim, name: &str, event: &Happens) {
    match event {
        Happens::Leaves(_) => {
            sim.nodes.remove(name);
            sim.gpu_nodes.remove(name);
            sim.gpu_pods.remove(name);
            sim.faults.remove(name);
            sim.pods.retain(|_, pod| pod.node != name);
        }
        Happens::GetsHostDriver(_) if !sim.nodes[name].labels.contains_key(Stage::Driver.key()) => {
            sim.host_driver(name, "550.1.1", true);
        }
        Happens::LosesGpu(_) => drop(sim.report(name).gpus.pop()),
        Happens::Breaks(_, how) => {
            let words = |word: &str| word.to_owned();
            let faults = match how {
                0 => Faults { missing_images: [words("590.10.01"), words("580.173.02")].into(), ..Faults::default() },
                1 => Faults { driver_crash: Some(words("no headers")), ..Faults::default() },
                2 => Faults { loads_instead: Some(words("1.2.3")), ..Faults::default() },
                3 => Faults { pods_forbidden: true, ..Faults::default() },
                _ => Faults { publishes: Some(0), ..Faults::default() },
            };
            sim.faults.insert(name.to_owned(), faults);
        }
        Happens::Heals(_) => drop(sim.faults.remove(name)),
        // The scheduler places a GPU pod only where a GPU is allocatable.
        Happens::GetsGpuPod(_) if sim.nodes[name].allocatable.unwrap_or_default() > 0 => {
            sim.gpu_pods.insert(name.to_owned(), vec!["team/training".into()]);
        }
        Happens::LosesGpuPod(_) => drop(sim.gpu_pods.remove(name)),
        Happens::GoesAway(_) => node(sim, name).ready = false,
        Happens::ComesBack(_) => node(sim, name).ready = true,
        Happens::IsCordoned(_, cordoned) => node(sim, name).cordoned = *cordoned,
        Happens::MovesZone(_) => drop(node(sim, name).labels.insert("zone".into(), "a".into())),
        _ => {}
    }
}

fn node<'s>(sim: &'s mut Sim, name: &str) -> &'s mut gpu_operator::world::NodeFacts {
    sim.nodes.get_mut(name).expect("a node")
}

/// One step, with everything that must hold at every instant.
fn checked_step(sim: &mut Sim) {
    let plan = sim.plan();
    // 5: never Ready unless enough nodes can run GPU pods.
    for (name, status) in &plan.statuses {
        let ready = status.conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True");
        let able =
            sim.nodes.values().filter(|node| node.serves() && node.allocatable.is_some_and(|gpus| gpus > 0)).count();
        assert!(!ready || able >= usize::try_from(status.nodes.ready).expect("few") && able > 0, "{name}: {status:#?}");
    }
    // 7: no key outside our prefix and what the policy names.
    for write in plan.labels.values() {
        for key in write.labels.keys() {
            assert!(key.starts_with(keys::PREFIX) || KEYS.contains(&key.as_str()), "{key}");
        }
    }
    // 4: no node's driver moves while a pod uses a GPU of it.
    for (name, write) in &plan.labels {
        let had = sim.nodes[name].labels.get(keys::DRIVER);
        let moves = had.is_some()
            && had.map(gpu_operator::world::Word::as_str) != write.labels.get(keys::DRIVER).map(String::as_str);
        let used = sim.gpu_pods.get(name).is_some_and(|pods| !pods.is_empty());
        assert!(!(moves && used), "{name}: {had:?} → {:?} under a GPU pod", write.labels);
    }
    sim.step();
    sim.sleep(1);
    // 3: one node of a pool at a time.
    let mut moving: BTreeMap<String, u32> = BTreeMap::new();
    for gpu_node in sim.gpu_nodes.values().filter(|gpu_node| gpu_node.spec.rollout.is_some()) {
        *moving.entry(gpu_node.spec.pool.clone().unwrap_or_default()).or_default() += 1;
    }
    assert!(moving.values().all(|count| *count <= 1), "{moving:?}");
}

/// The same cases on every run, so that a change is judged and not luck. To look further:
/// `PROPTEST_RNG_SEED=<number> PROPTEST_CASES=<many> cargo test -p gpu-operator --test properties`.
fn config() -> ProptestConfig {
    let from_environment = ProptestConfig::default();
    let asked = |name| std::env::var_os(name).is_some();
    ProptestConfig {
        cases: if asked("PROPTEST_CASES") { from_environment.cases } else { 32 },
        rng_seed: if asked("PROPTEST_RNG_SEED") { from_environment.rng_seed } else { RngSeed::Fixed(20) },
        ..from_environment
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn whatever_happens_every_invariant_holds_and_the_fleet_settles(events in prop::collection::vec(happens(), 1..30)) {
        let mut sim = fleet();
        for event in &events {
            happen(&mut sim, event);
        }
        // 2: in the end nothing is left to plan, though broken nodes stay broken.
        sim.settle();
        // 6: and in the very end nothing of ours is left.
        sim.delete_policy("all");
        sim.settle();
        for node in sim.nodes.values() {
            let left: Vec<_> = node.labels.keys().filter(|key| key.starts_with(keys::PREFIX) || KEYS.contains(&key.as_str())).collect();
            prop_assert!(left.is_empty() && node.owned_labels.is_empty(), "{}: {left:?}", node.name);
        }
        prop_assert!(sim.policies.is_empty() && sim.sets.is_empty());
    }

    #[test]
    fn what_happens_to_one_node_plans_nothing_for_another(
        models in prop::collection::vec((0..MODELS.len(), 1..9_u32), 2..6),
        spec in 0..SPECS.len(),
        event in happens(),
    ) {
        let mut sim = Sim::new().policy("all", SPECS[spec]);
        for (index, (model, count)) in models.iter().enumerate() {
            sim.join(&format!("n{index}"), MODELS[*model], *count);
        }
        sim.settle();
        if let Happens::Policy(_) | Happens::Time(_) | Happens::Joins(..) | Happens::Killed(_) = event {
            return Ok(());
        }
        let names: Vec<String> = sim.nodes.keys().cloned().collect();
        happen(&mut sim, &event);
        // 1: that node's lines, new DaemonSets perhaps, and the policy's counters.
        let plan = sim.plan();
        let touched: std::collections::BTreeSet<_> = plan.labels.keys().chain(plan.gpu_nodes.keys()).collect();
        prop_assert!(touched.len() <= 1, "{event:?} touches {touched:?} of {names:?}");
        for set in plan.daemon_sets.keys() {
            prop_assert!(!sim.sets.contains_key(set), "{event:?} changes {set}");
        }
        for set in &plan.prune {
            let group = sim.sets[set].spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).and_then(|pod| pod.node_selector.clone());
            let (key, value) = group.and_then(|selector| selector.into_iter().next()).expect("a selector");
            prop_assert!(sim.nodes.values().all(|node| node.labels.get(key.as_str()).is_none_or(|named| *named != value)), "{event:?} prunes {set}");
        }
    }
}
