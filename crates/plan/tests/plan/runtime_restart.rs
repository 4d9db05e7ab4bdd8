//! Toolkits that restart the container runtime: one node of a pool at a time, when they are installed, changed, repaired or removed.

use std::time::Duration;
use test_support::planned::Planned;

use gpu_operator_crd::{NodeName, Phase, keys, reason::Reason};
use gpu_operator_plan::world::{ContainerFacts, ContainerState, Deletion, Exit, PodFacts};
use k8s_openapi::jiff::Timestamp;

use crate::{
    sim::{Faults, Sim},
    toolkit::fleet,
};

/// Returns a fleet that has not been installed yet and whose container runtimes must be restarted.
pub(crate) fn fresh(nodes: &[&str], toolkit: &str) -> Sim {
    let spec = format!("{{deletionPolicy: Now, defaults: {{toolkit: {toolkit}}}}}");
    let mut sim = Sim::new().policy("all", &spec);
    for node in nodes {
        sim.join(*node, "2330", 8);
        sim.node_mut(*node).runtime = "containerd://1.7.27".into();
    }
    sim
}

/// Returns the faults of a node whose container runtime rejects its configuration.
fn rejected() -> Faults {
    let words = "RuntimeConfigRejected: the container runtime does not start: unknown key".to_owned();
    Faults { restart: Some(words), ..Faults::default() }
}

/// Returns the nodes with a toolkit label but no running toolkit: their runtime may be restarted at any time.
fn restarting(sim: &Sim) -> Vec<NodeName> {
    let labelled = sim.nodes.values().filter(|node| node.labels.contains_key(keys::TOOLKIT));
    let runs = |name: &NodeName| sim.pods.get(&format!("toolkit@{name}")).is_some_and(PodFacts::running);
    labelled.map(|node| node.name.clone()).filter(|name| !runs(name)).collect()
}

/// Returns the number of nodes with a toolkit label.
fn with_toolkit(sim: &Sim) -> usize {
    sim.nodes.values().filter(|node| node.labels.contains_key(keys::TOOLKIT)).count()
}

#[test]
fn default_runtimes_are_removed_one_node_at_a_time() {
    let mut sim = fresh(&["a", "b", "c"], "{setAsDefault: true}");
    sim.settle();
    sim.delete_policy("all");
    for left in (0..3).rev() {
        sim.step();
        assert_eq!(with_toolkit(&sim), left);
        sim.sleep(1);
    }
    sim.settle();
    assert!(sim.sets.is_empty() && sim.policies.is_empty(), "everything that the operator created is removed");

    let mut sim = fresh(&["a", "b", "c"], "{}");
    sim.settle();
    sim.delete_policy("all");
    sim.step();
    assert_eq!(with_toolkit(&sim), 0, "if no runtime is restarted, no node waits");
}

#[test]
fn a_toolkit_is_removed_once_the_previous_one_has_terminated() {
    let mut sim = fresh(&["a", "b", "c"], "{setAsDefault: true}");
    sim.settle();
    sim.delete_policy("all");
    sim.label("a", keys::TOOLKIT, None);
    let by = sim.now + jiff::SignedDuration::from_secs(180);
    let pod = sim.pods.get_mut("toolkit@a").expect("a pod");
    pod.deletion = Some(Deletion { since: by.into(), grace: Duration::ZERO });
    let leaving = |sim: &Sim| -> Vec<NodeName> {
        let plan = sim.plan();
        let gone = plan.labels().into_iter().filter(|(_, write)| !write.labels.contains_key(keys::TOOLKIT));
        gone.map(|(name, _)| name.clone()).filter(|name| name != "a").collect()
    };
    assert!(leaving(&sim).is_empty());
    // The runtime is being restarted, and the node may be NotReady meanwhile.
    sim.node_mut("a").ready = false;
    sim.sleep(180 + 119);
    assert!(leaving(&sim).is_empty());
    // A restart that never completes does not block other nodes indefinitely.
    sim.sleep(1);
    assert_eq!(leaving(&sim), ["b"]);
}

/// Sets the progress of the toolkit pod on node `a`: its init containers so far, and whether its main container runs.
pub(crate) fn set_progress(sim: &mut Sim, steps: &[(&str, ContainerState)], runs: bool) {
    let step = |(name, state): &(&str, ContainerState)| ContainerFacts {
        name: (*name).into(),
        state: state.clone(),
        last_failure: None,
        ready: false,
    };
    let waiting = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
    let pod = sim.pods.get_mut("toolkit@a").expect("a pod");
    pod.init = steps.iter().map(step).collect();
    pod.containers[0].state = if runs { ContainerState::Running(None) } else { waiting };
}

#[test]
fn an_unfinished_toolkit_is_removed_once_it_can_restore() {
    let ended = |code| ContainerState::Ended(Exit { code, message: String::new() });
    let waits = || ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
    let running = || ContainerState::Running(None);
    let no_image = ContainerState::Waiting { reason: "ImagePullBackOff".into(), message: String::new() };
    let long_ago = ContainerState::Running(Some(Timestamp::UNIX_EPOCH.into()));
    let (install, restart) = ("install-toolkit", "restart-runtime");
    for (steps, runs, stays) in [
        (vec![("wait-for-driver", running()), (install, waits())], false, false),
        (vec![(install, running()), (restart, waits())], false, true),
        (vec![(install, ended(0)), (restart, waits())], false, true),
        (vec![(install, ended(0)), (restart, running())], false, true),
        (vec![(install, ended(0)), (restart, ended(0))], false, true),
        (vec![(install, ended(0)), (restart, ended(0))], true, false),
        // These pods are stuck.
        (vec![(install, ended(0)), (restart, no_image)], false, false),
        (vec![(install, ended(1)), (restart, waits())], false, false),
        (vec![(install, ended(0)), (restart, ended(1))], false, false),
        (vec![(install, long_ago), (restart, waits())], false, false),
    ] {
        let mut sim = fresh(&["a"], "{}");
        sim.settle();
        sim.delete_policy("all");
        set_progress(&mut sim, &steps, runs);
        let plan = sim.plan();
        let keeps = plan.labels()[&"a".into()].labels.contains_key(keys::TOOLKIT);
        assert_eq!(keeps, stays, "{steps:?} {runs}");
        assert!(!keeps || plan.check_again.is_some());
        // The restart by the toolkit itself may be the cause.
        sim.node_mut("a").ready = false;
        assert_eq!(sim.plan().labels()[&"a".into()].labels.contains_key(keys::TOOLKIT), stays);
        sim.pods.get_mut("toolkit@a").expect("a pod").created = Some(Timestamp::UNIX_EPOCH.into());
        assert!(
            !sim.plan().labels()[&"a".into()].labels.contains_key(keys::TOOLKIT),
            "a pod that is too old is not waited for"
        );
    }
}

#[test]
fn an_unfinished_toolkit_is_replaced_once_it_can_restore() {
    let mut sim = fleet("containerd://2.1.4", "v1.34.1", "{injection: Runtime}");
    let first = sim.node("a").labels[keys::TOOLKIT].clone();
    set_progress(&mut sim, &[("install-toolkit", ContainerState::Running(None))], false);
    sim.apply_policy("all", "{defaults: {toolkit: {injection: CDI}}}");
    for made in 0..5 {
        let plan = sim.plan();
        // The first plan creates the DaemonSets.
        assert!(made == 0 || plan.check_again.is_some());
        sim.carry_out(&plan);
        sim.sleep(1);
        assert_eq!(sim.node("a").labels.get(keys::TOOLKIT), Some(&first));
    }
    set_progress(&mut sim, &[], true);
    sim.settle();
    assert_ne!(sim.node("a").labels.get(keys::TOOLKIT), Some(&first));
}

#[test]
fn no_toolkit_is_removed_while_another_is_being_installed() {
    let mut sim = fresh(&["a", "b"], "{setAsDefault: true}");
    sim.settle();
    sim.delete_policy("all");
    set_progress(&mut sim, &[("install-toolkit", ContainerState::Running(None))], false);
    let plan = sim.plan();
    let stays = |node: &str| plan.labels()[&node.into()].labels.contains_key(keys::TOOLKIT);
    assert!(stays("a") && stays("b"), "{:?}", plan.labels());
}

#[test]
fn a_runtime_that_does_not_restart_halts_the_rest_of_its_pool() {
    let spec = "{pools: [{name: p, match: {nodeSelector: {matchLabels: {zone: p}}}}, {name: q}]}";
    let mut sim = fresh(&["a", "b", "c", "d"], "{}");
    sim.apply_policy("all", spec);
    for node in ["a", "b", "c"] {
        sim.label(node, "zone", Some("p"));
        let restart = Some("RuntimeDown: the container runtime does not start".to_owned());
        sim.faults.insert(node.into(), Faults { restart, ..Faults::default() });
    }
    sim.run(120);
    assert_eq!(restarting(&sim), ["a"]);
    assert_eq!(sim.status("a").reason(), Some(Reason::RuntimeDown));
    assert_eq!(sim.status("d").phase, Phase::Ready, "other pools continue");
    for node in ["b", "c"] {
        let status = sim.status(node);
        assert_eq!((status.phase, status.reason()), (Phase::Toolkit, Some(Reason::RuntimeTurnPending)), "{status:?}");
        assert_eq!(status.deadline, None, "the node waits for another node");
        assert!(!sim.node(node).labels.contains_key(keys::TOOLKIT));
        assert!(sim.node(node).labels.contains_key(keys::DRIVER), "the driver does not wait");
    }
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    // A node that joins waits as well, and a policy that changes the runtime's configuration is tried on the failed
    // node first.
    sim.join("b2", "2330", 8);
    sim.node_mut("b2").runtime = "containerd://1.7.27".into();
    sim.label("b2", "zone", Some("p"));
    sim.run(30);
    assert!(!sim.node("b2").labels.contains_key(keys::TOOLKIT));
    sim.apply_policy("all", &spec.replace("{name: p,", "{name: p, toolkit: {runtimeClass: gpu},"));
    sim.run(30);
    assert_eq!(restarting(&sim), ["a"]);
    sim.faults.clear();
    sim.settle();
    for node in ["a", "b", "b2", "c", "d"] {
        assert_eq!(sim.status(node).phase, Phase::Ready, "{:?}", sim.status(node));
    }
    assert_eq!(sim.condition("all", "Stalled").0, "False");
}

#[test]
fn nothing_changes_while_a_runtime_does_not_report_its_version() {
    let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
    let (labels, sets, writes) = (sim.node("a").labels.clone(), sim.sets.clone(), sim.writes["node/a"]);
    sim.node_mut("a").runtime = "containerd://Unknown".into();
    sim.run(60);
    assert_eq!((&sim.node("a").labels, sim.writes["node/a"]), (&labels, writes));
    assert!(sim.sets == sets);
    assert_eq!(sim.status("a").phase, Phase::Ready, "the phase depends on allocatable alone");
    // A node that joins in this state gets no operands yet.
    let mut sim = fresh(&["a"], "{}");
    sim.node_mut("a").runtime = "containerd://Unknown".into();
    sim.run(60);
    assert!(sim.sets.is_empty() && !sim.node("a").labels.contains_key(keys::DRIVER));
    sim.node_mut("a").runtime = "containerd://1.7.27".into();
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

#[test]
fn a_runtime_that_is_not_about_to_restart_blocks_no_other() {
    for case in ["no image", "past"] {
        let mut sim = fresh(&["a"], "{}");
        sim.settle();
        let pod = sim.pods.get_mut("toolkit@a").expect("a pod");
        let waiting = |reason: &str| ContainerState::Waiting { reason: reason.into(), message: "not found".into() };
        if case == "past" {
            pod.containers[0].last_failure = Some(Exit { code: 1, message: "it broke".into() });
            pod.containers[0].state = waiting("CrashLoopBackOff");
        } else {
            pod.containers[0].state = waiting("PodInitializing");
            let named = |name: &str, reason: &str| ContainerFacts {
                name: name.into(),
                state: waiting(reason),
                last_failure: None,
                ready: false,
            };
            pod.init = vec![named("install-toolkit", "ImagePullBackOff"), named("restart-runtime", "PodInitializing")];
        }
        pod.containers[0].ready = false;
        let kept = sim.pods["toolkit@a"].clone();
        sim.join("b", "2330", 8);
        sim.node_mut("b").runtime = "containerd://1.7.27".into();
        for _ in 0..30 {
            sim.step();
            sim.sleep(1);
            sim.pods.insert("toolkit@a".into(), kept.clone());
        }
        assert!(sim.node("b").labels.contains_key(keys::TOOLKIT), "{case}");
    }
}

#[test]
fn a_first_install_restarts_runtimes_one_node_at_a_time() {
    let nodes = ["a", "b", "c"];
    let mut sim = fresh(&nodes, "{}");
    let mut had: Vec<&str> = vec![];
    for _ in 0..200 {
        let before: Vec<_> = nodes.iter().filter(|node| sim.node(**node).labels.contains_key(keys::TOOLKIT)).collect();
        let happened = sim.step();
        sim.sleep(1);
        assert!(restarting(&sim).len() <= 1, "{:?}", restarting(&sim));
        let after = nodes.iter().filter(|node| sim.node(**node).labels.contains_key(keys::TOOLKIT));
        let new: Vec<_> = after.filter(|node| !before.contains(node)).collect();
        assert!(new.len() <= 1, "{new:?} at once");
        had.extend(new.into_iter().copied());
        if !happened {
            break;
        }
    }
    assert_eq!(had, nodes);
    sim.settle();
    for node in nodes {
        assert_eq!(sim.status(node).phase, Phase::Ready, "{:?}", sim.status(node));
    }
}

#[test]
fn a_fix_for_many_nodes_restarts_their_runtimes_one_by_one() {
    let nodes = ["a", "b", "c"];
    let mut sim = fresh(&nodes, "{injection: Runtime}");
    sim.settle();
    // All nodes fail at once, and a change that fixes failed nodes is usually applied to all of them at once.
    for node in nodes {
        sim.faults.insert(node.into(), rejected());
        sim.pods.remove(&format!("toolkit@{node}"));
        sim.node_mut(node).allocatable = 0.into();
        sim.pods.remove(&format!("device-plugin@{node}"));
    }
    sim.run(30);
    assert_eq!(restarting(&sim), nodes);
    sim.faults.clear();
    sim.apply_policy("all", "{defaults: {toolkit: {injection: Runtime, runtimeClass: gpu}}}");
    let labels = |sim: &Sim| nodes.map(|node| sim.node(node).labels[keys::TOOLKIT].clone());
    for _ in 0..60 {
        let before = labels(&sim);
        sim.step();
        sim.sleep(1);
        let moved = before.iter().zip(labels(&sim)).filter(|(before, after)| *before != after).count();
        assert!(moved <= 1, "{moved} at once");
    }
    sim.settle();
    for node in nodes {
        assert_eq!(sim.status(node).phase, Phase::Ready, "{:?}", sim.status(node));
    }
}

#[test]
fn a_toolkit_that_waits_for_its_driver_costs_no_writes() {
    // The node moves to another pool while its host's driver has to be reloaded, so that no toolkit is added to its runtime.
    let mut sim = Sim::new();
    sim.join("a", "2330", 1);
    sim.node_mut("a").runtime = "containerd://1.7.27".into();
    sim.host_driver("a", "550.1.1", true);
    sim.write_report(&"a".into());
    sim.apply_policy("all", "{}");
    sim.steps(2);
    sim.upgrade_packages(&"a".into());
    sim.label("a", "cloud.google.com/gke-accelerator", Some("nvidia-tesla-t4"));
    sim.steps(5);
    let rollout = sim.spec("a").rollout.clone().expect("an update");
    let toolkit = sim.spec("a").current.as_ref().and_then(|current| current.toolkit.clone());
    assert_eq!(toolkit, rollout.from.toolkit, "it waits");
    let writes = sim.writes.clone();
    sim.steps(300);
    assert_eq!((&sim.writes, &sim.spec("a").rollout), (&writes, &Some(rollout)));
    // It fails by its deadline.
    sim.sleep(30 * 60);
    sim.run(100);
    assert_eq!(sim.spec("a").rollout, None);
    assert_eq!(sim.condition("all", "Stalled").0, "True");
}
