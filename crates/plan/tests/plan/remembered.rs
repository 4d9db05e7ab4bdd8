//! What a rollout remembers: what stopped it, and what its nodes had before. And what is no failure of an update.

use gpu_operator_crd::{NodeName, keys};

use crate::{
    properties::events::taint_at_start,
    robust::{loaded, rollout_spec as spec, updating_fleet},
    sim::{Faults, Sim},
};

type Change = fn(&mut Sim);

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const OLD: &str = "595.91.07";
const NEW: &str = "590.10.01";

fn with(sim: &mut Sim, version: &str) -> Vec<NodeName> {
    let nodes: Vec<NodeName> = sim.nodes.keys().cloned().collect();
    nodes.into_iter().filter(|node| loaded(sim, node.as_str()) == version).collect()
}

fn fails(sim: &mut Sim, node: &str) {
    sim.faults.entry(node.into()).or_default().missing_images.insert(NEW.to_owned());
}

fn stalled(sim: &Sim) -> String {
    sim.condition("all", "Stalled").1
}

/// A fleet that has returned to its driver, because node b could not get another one.
fn rolled_back() -> Sim {
    let mut sim = updating_fleet(&NODES, "{onFailure: RollBack}");
    fails(&mut sim, "b");
    sim.run(600);
    assert_eq!((with(&mut sim, OLD).len(), stalled(&sim).as_str()), (4, "RolledBack"));
    sim.faults.clear();
    sim
}

#[test]
fn a_failed_canary_node_proves_nothing() {
    let mut sim = updating_fleet(&NODES, "{maxFailures: 2, maxUnavailable: 100%, canary: {nodes: 1, soak: 1h}}");
    fails(&mut sim, "a");
    sim.run(300);
    // It keeps its slot until its deadline.
    sim.sleep(31 * 60);
    sim.run(300);
    assert_eq!(with(&mut sim, NEW), ["b"]);
    sim.sleep(3500);
    sim.run(60);
    assert_eq!(with(&mut sim, NEW), ["b"], "another canary node soaks");
    sim.sleep(200);
    sim.run(900);
    assert_eq!(with(&mut sim, NEW), ["b", "c", "d"]);
}

#[test]
fn a_node_that_has_left_keeps_no_slot_beyond_its_deadline() {
    let mut sim = updating_fleet(&NODES, "{maxFailures: 4}");
    fails(&mut sim, "a");
    sim.run(200);
    assert!(sim.is_moving("a") && !sim.is_moving("b"));
    // A pod keeps its GPU stack there.
    sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    sim.label("a", keys::MANAGED, Some("false"));
    sim.steps(25 * 60);
    assert_eq!(with(&mut sim, NEW), Vec::<NodeName>::new());
    sim.steps(8 * 60);
    assert_eq!(with(&mut sim, NEW), ["b", "c", "d"]);
}

/// Updates one of two nodes; the other is busy.
fn updated(strategy: &str) -> Sim {
    let mut sim = updating_fleet(&["a", "b"], strategy);
    sim.gpu_pods.insert("b".into(), vec!["team/training".into()]);
    sim.run(200);
    assert_eq!((with(&mut sim, NEW), with(&mut sim, OLD)), (vec!["a".into()], vec!["b".into()]));
    sim
}

fn loses_its_plugin(sim: &mut Sim) {
    sim.faults.insert("a".into(), Faults { pods_forbidden: Some("forbidden by a quota"), ..Faults::default() });
    sim.pods.remove("device-plugin@a");
}

#[test]
fn a_pool_returns_only_for_lasting_failures_in_the_soak() {
    // Below the grace, in the soak, and long after it.
    for (after, lasts, returns) in [(0, 20, false), (0, 200, true), (11 * 60, 200, false)] {
        let mut sim = updated("{onFailure: RollBack}");
        sim.steps(after);
        loses_its_plugin(&mut sim);
        sim.steps(lasts);
        sim.faults.clear();
        sim.steps(400);
        let why = format!("after {after} s, for {lasts} s: {:#?}", sim.policy_status("all").rollout);
        assert_eq!(loaded(&mut sim, "a"), if returns { OLD } else { NEW }, "{why}");
        assert_eq!(stalled(&sim) == "RolledBack", returns, "{why}");
    }
}

#[test]
fn what_others_do_to_a_node_is_no_failure_of_its_update() {
    let taint = |sim: &mut Sim| taint_at_start(sim.node_mut("a"), "dedicated", "NoSchedule");
    let mute = |sim: &mut Sim| {
        sim.faults.insert("a".into(), Faults { no_probe: true, ..Faults::default() });
        sim.reboot("a", 0);
    };
    let events: [(&str, Change); 2] = [("taint", taint), ("probe", mute)];
    for (what, happens) in events {
        let mut sim = updated("{onFailure: RollBack}");
        happens(&mut sim);
        sim.steps(200);
        assert_ne!(stalled(&sim), "RolledBack", "{what}: {:#?}", sim.status("a"));
        assert_eq!(sim.policy_status("all").rollout.pools[0].rolled_back, "", "{what}");
    }
}

#[test]
fn the_second_reboot_by_updates_halts_the_pool() {
    for on_failure in ["Halt", "RollBack"] {
        let mut sim = updating_fleet(&NODES, &format!("{{onFailure: {on_failure}}}"));
        let mut rebooted = Vec::new();
        for _ in 0..3000 {
            sim.step();
            sim.sleep(1);
            // The driver reboots every node when it is loaded.
            for node in NODES {
                let is_replaced = sim.driver_version(&node.into()).as_deref() == Some(NEW);
                if is_replaced && !rebooted.contains(&node) {
                    rebooted.push(node);
                    sim.reboot(node, 0);
                }
            }
        }
        assert_eq!(rebooted, ["a", "b"], "{on_failure}");
        assert_eq!(stalled(&sim), "RolloutHalted", "{on_failure}");
        let message = sim.message("all", "Stalled");
        assert!(message.contains("a, b rebooted"), "{message}");
    }
}

#[test]
fn an_update_that_awaits_its_pods_has_begun_nothing() {
    let mut sim = updating_fleet(&["a", "b"], "{onFailure: RollBack, gpuPods: {mode: Await}}");
    sim.gpu_pods.insert("a".into(), vec!["team/training".into()]);
    sim.run(60);
    assert!(sim.is_moving("a"));
    loses_its_plugin(&mut sim);
    sim.steps(300);
    assert_eq!(sim.policy_status("all").rollout.pools[0].rolled_back, "");
}

#[test]
fn other_settings_end_a_rollback() {
    let mut sim = rolled_back();
    sim.apply_policy("all", &spec("{onFailure: RollBack}", "580.173.02"));
    sim.run(900);
    assert_eq!(with(&mut sim, "580.173.02"), NODES);
    assert_eq!(stalled(&sim), "Settled");
}
