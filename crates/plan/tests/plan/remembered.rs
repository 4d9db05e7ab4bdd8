//! What a rollout remembers: what stopped it, and what its nodes had before. And what is no failure of an update.

use gpu_operator_crd::{NodeName, keys, reason::Reason};

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
fn a_bad_driver_does_not_return_by_itself() {
    let lost = |sim: &mut Sim| {
        let nothing = "{nodeSelector: {matchLabels: {pool: none}}}";
        let policy = sim.policies[&"all".into()].spec.clone();
        sim.apply_policy("all", nothing);
        sim.steps(180);
        sim.apply_spec("all", policy);
    };
    let empty = |sim: &mut Sim| {
        for node in NODES {
            sim.leave(&node.into());
        }
        sim.steps(180);
        for node in ["e", "f"] {
            sim.join(node, "2330", 8);
        }
    };
    let model = |sim: &mut Sim| {
        let mut spec = sim.policies[&"all".into()].spec.clone();
        let models = "[{name: another-card, pciIDs: [\"fffe\"], architecture: Hopper, driver: {branches: [\"590\"]}}]";
        spec.models = serde_yaml::from_str(models).expect("models");
        sim.apply_spec("all", spec);
    };
    let events: [(&str, Change); 3] = [("selector", lost), ("pool at zero", empty), ("model", model)];
    for (what, happens) in events {
        let mut sim = rolled_back();
        happens(&mut sim);
        sim.run(900);
        assert_eq!(with(&mut sim, NEW), Vec::<NodeName>::new(), "{what}");
        assert_eq!(stalled(&sim), "RolledBack", "{what}");
        // The annotation attempts it again.
        let policy = sim.policies.get_mut(&"all".into()).expect("a policy");
        policy.metadata.annotations = Some([(keys::RETRY.to_owned(), "1".to_owned())].into());
        sim.run(900);
        assert_eq!(with(&mut sim, OLD), Vec::<NodeName>::new(), "{what}");
    }
}

#[test]
fn a_node_that_joins_gets_what_its_pool_has_proven() {
    for (strategy, fault) in [("{maxFailures: 1}", true), ("{canary: {nodes: 1, soak: 24h}}", false)] {
        let mut sim = updating_fleet(&NODES, strategy);
        if fault {
            fails(&mut sim, "a");
        }
        sim.run(300);
        sim.join("e", "2330", 8);
        sim.run(300);
        assert_eq!(loaded(&mut sim, "e"), OLD, "{strategy}");
        assert_eq!(sim.status("e").reason(), Some(Reason::RolloutPending), "{strategy}");
        sim.faults.clear();
        sim.sleep(25 * 3600);
        sim.run(900);
        assert_eq!(with(&mut sim, NEW).len(), 5, "{strategy}");
    }
    let mut sim = updating_fleet(&NODES, "{paused: true}");
    sim.run(100);
    sim.join("e", "2330", 8);
    sim.run(300);
    assert_eq!(with(&mut sim, OLD).len(), 5);
    // A pool without anything proven installs within the limits of updates.
    let mut sim = updating_fleet(&NODES, "{maxFailures: 1}");
    fails(&mut sim, "a");
    sim.run(300);
    for node in ["x", "y"] {
        sim.join(node, "2330", 8);
        let report = sim.report(node);
        (report.os.id, report.os.version_id) = ("ubuntu".into(), "24.04".into());
    }
    sim.steps(20);
    let begun = ["x", "y"].into_iter().filter(|node| sim.is_moving(*node)).count();
    assert_eq!(begun, 0, "node a has the only slot");
    sim.steps(31 * 60);
    sim.run(600);
    assert_eq!((loaded(&mut sim, "x"), loaded(&mut sim, "y")), (NEW.into(), NEW.into()));
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
fn a_node_that_an_autoscaler_removes_is_not_updated() {
    let mut sim = updating_fleet(&NODES, "{}");
    taint_at_start(sim.node_mut("a"), "ToBeDeletedByClusterAutoscaler", "NoSchedule");
    sim.run(900);
    assert_eq!(with(&mut sim, NEW), ["b", "c", "d"]);
}

#[test]
fn other_settings_end_a_rollback() {
    let mut sim = rolled_back();
    sim.apply_policy("all", &spec("{onFailure: RollBack}", "580.173.02"));
    sim.run(900);
    assert_eq!(with(&mut sim, "580.173.02"), NODES);
    assert_eq!(stalled(&sim), "Settled");
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
    fails(&mut sim, "b");
    sim.apply_policy("all", &spec(NEW));
    sim.run(600);
    assert_eq!((with(&mut sim, OLD).len(), stalled(&sim).as_str()), (2, "RolledBack"));
}
