//! Canary nodes, soaking, and returning to the previous revision.

use gpu_operator_crd::{NodeName, health::HealthState, keys, policy_status::RolloutStatus};

use crate::{
    robust::{loaded, rollout_spec as spec, updating_fleet},
    sim::Sim,
};

const NODES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const OLD: &str = "595.91.07";
const NEW: &str = "590.10.01";
const THIRD: &str = "580.173.02";

/// A settled fleet of six nodes, whose policy has this strategy and another driver version now. Every write obeys the laws.
fn updating(strategy: &str) -> Sim {
    updating_fleet(&NODES, strategy)
}

fn with(sim: &mut Sim, version: &str) -> Vec<NodeName> {
    let nodes: Vec<NodeName> = sim.nodes.keys().cloned().collect();
    nodes.into_iter().filter(|node| loaded(sim, node.as_str()) == version).collect()
}

/// Runs until nothing changes within a minute.
fn run(sim: &mut Sim) {
    sim.run(400);
}

fn fails(sim: &mut Sim, node: &str, version: &str) {
    sim.faults.entry(node.into()).or_default().missing_images.insert(version.to_owned());
}

#[test]
fn canary_nodes_are_updated_before_all_others() {
    let mut sim = updating("{maxParallel: 3, maxUnavailable: 100%, canary: {nodes: 2, soak: 1h}}");
    run(&mut sim);
    assert_eq!(with(&mut sim, NEW), ["a", "b"]);
    let message = sim.status("c").message;
    assert!(message.contains("the canary nodes of this pool have to work until"), "{message}");
    assert_eq!(sim.condition("all", "Reconciling"), ("True".into(), "RollingOut".into()));
    sim.sleep(3500);
    run(&mut sim);
    assert_eq!(with(&mut sim, NEW).len(), 2, "an hour has not passed");
    sim.sleep(200);
    run(&mut sim);
    assert_eq!(with(&mut sim, NEW), NODES);
    assert_eq!(sim.policy_status("all").rollout, RolloutStatus::default());
}

#[test]
fn a_canary_share_is_rounded_up_and_counts_per_pool() {
    let mut sim = updating("{maxParallel: 6, maxUnavailable: 100%, canary: {nodes: 20%, soak: 1h}}");
    run(&mut sim);
    assert_eq!(with(&mut sim, NEW), ["a", "b"], "a fifth of six nodes");
}

#[test]
fn health_that_gets_worse_after_an_update_halts_the_pool() {
    for before in [false, true] {
        let mut sim = Sim::settled_fleet(&spec("{canary: {nodes: 1, soak: 1h}}", OLD), &NODES);
        let ail = |sim: &mut Sim| sim.report("a").gpus[0].health.state = HealthState::Degraded;
        if before {
            ail(&mut sim);
            sim.run(20);
        }
        sim.apply_policy("all", &spec("{canary: {nodes: 1, soak: 1h}}", NEW));
        run(&mut sim);
        ail(&mut sim);
        sim.run(100);
        sim.sleep(3700);
        run(&mut sim);
        assert_eq!(with(&mut sim, NEW).len(), if before { 6 } else { 1 });
        if !before {
            let message = sim.message("all", "Stalled");
            assert!(message.contains("node a: 1 of its GPUs have had a problem since its update"), "{message}");
        }
    }
}

#[test]
fn after_a_failure_all_nodes_return_and_stay() {
    for strategy in [
        "{onFailure: RollBack}",
        "{onFailure: RollBack, maxParallel: 3, maxUnavailable: 100%, gpuPods: {mode: Await}}",
        "{onFailure: RollBack, canary: {nodes: 4}, maxParallel: 2, maxUnavailable: 100%}",
    ] {
        let mut sim = updating(strategy);
        fails(&mut sim, "d", NEW);
        run(&mut sim);
        assert_eq!(with(&mut sim, OLD), NODES, "{strategy}");
        assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolledBack".into()), "{strategy}");
        let message = sim.message("all", "Stalled");
        assert!(message.contains("because of node d: DriverImageNotFound"), "{message}");
        assert_eq!(sim.condition("all", "Ready").0, "True", "{strategy}");
        assert!(sim.nodes.values().all(|node| !node.cordoned), "{strategy}");
        assert!(sim.policy_status("all").rollout.slots.is_empty(), "{strategy}");
        // It does not try again by itself.
        let updates_begun: Vec<_> = NODES.map(|node| sim.spec(node).updates_begun).into();
        sim.faults.clear();
        sim.sleep(3600);
        run(&mut sim);
        assert_eq!(NODES.map(|node| sim.spec(node).updates_begun).to_vec(), updates_begun, "{strategy}");
        // A node that joins gets what the others have.
        sim.join("g", "2330", 8);
        run(&mut sim);
        assert_eq!(loaded(&mut sim, "g"), OLD, "{strategy}");
        // Users ask for another attempt.
        let policy = sim.policies.get_mut(&"all".into()).expect("a policy");
        policy.metadata.annotations = Some([(keys::RETRY.to_owned(), "1".to_owned())].into());
        run(&mut sim);
        assert_eq!(with(&mut sim, NEW).len(), 7, "{strategy}");
        assert_eq!(sim.policy_status("all").rollout, RolloutStatus::default(), "{strategy}");
    }
}

#[test]
fn a_second_failure_on_the_way_back_halts() {
    let mut sim = updating("{onFailure: RollBack, maxParallel: 2, maxUnavailable: 100%}");
    fails(&mut sim, "d", NEW);
    for node in ["b", "d"] {
        fails(&mut sim, node, OLD);
    }
    run(&mut sim);
    sim.sleep(31 * 60);
    run(&mut sim);
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    let updates_begun: Vec<_> = NODES.map(|node| sim.spec(node).updates_begun).into();
    sim.sleep(7200);
    run(&mut sim);
    assert_eq!(NODES.map(|node| sim.spec(node).updates_begun).to_vec(), updates_begun, "it does not oscillate");
    // Once the failure is cured, the way back ends.
    sim.faults.clear();
    run(&mut sim);
    assert_eq!(with(&mut sim, OLD), NODES);
    assert_eq!(sim.condition("all", "Stalled").1, "RolledBack");
}

#[test]
fn nodes_return_to_what_the_last_complete_rollout_had_brought() {
    let mut sim = updating("{onFailure: RollBack, canary: {nodes: 2, soak: 1h}}");
    run(&mut sim);
    assert_eq!(with(&mut sim, NEW), ["a", "b"]);
    // The rollout is replaced by another one before it is complete.
    fails(&mut sim, "b", THIRD);
    sim.apply_policy("all", &spec("{onFailure: RollBack, canary: {nodes: 2, soak: 1h}}", THIRD));
    run(&mut sim);
    assert_eq!(with(&mut sim, OLD), NODES);
    assert_eq!(sim.condition("all", "Stalled").1, "RolledBack");
    // Reverting the policy ends it.
    sim.apply_policy("all", &spec("{onFailure: RollBack}", OLD));
    run(&mut sim);
    assert_eq!(sim.condition("all", "Stalled").0, "False");
    assert_eq!(sim.policy_status("all").rollout, RolloutStatus::default());
}

#[test]
fn a_pool_returns_although_all_its_nodes_were_updated() {
    let spec = |version: &str| {
        format!(
            "{{readiness: {{progressDeadline: 20s}}, rollout: {{onFailure: RollBack}}, defaults: {{driver: {{version: {version}}}}}}}"
        )
    };
    let mut sim = Sim::settled_fleet(&spec(OLD), &["a", "b"]);
    // The update of the last node fails by its deadline, before its failure has lasted.
    fails(&mut sim, "b", NEW);
    sim.apply_policy("all", &spec(NEW));
    sim.run(600);
    assert_eq!((with(&mut sim, OLD).len(), sim.condition("all", "Stalled").1.as_str()), (2, "RolledBack"));
}

#[test]
fn without_an_earlier_revision_nothing_returns() {
    let mut sim = Sim::new().policy("all", &spec("{onFailure: RollBack}", NEW));
    sim.join("a", "2330", 8);
    fails(&mut sim, "a", NEW);
    sim.run(60);
    assert_eq!(sim.status("a").reason().map(gpu_operator_crd::reason::Reason::as_str), Some("DriverImageNotFound"));
    assert_eq!(sim.condition("all", "Stalled").1, "DriverImageNotFound");
}
