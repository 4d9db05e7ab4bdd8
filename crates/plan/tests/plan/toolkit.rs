//! How containers get the driver: what is installed for which container runtime, and which failures are reported.

use gpu_operator_plan::carry::LoopState;
use gpu_operator_plan::output::write::Kind;
use std::time::Duration;
use test_support::planned::Planned;

use crate::{
    reviewed::review,
    sim::{Faults, Sim},
};
use gpu_operator_crd::{NodeName, Phase, keys, policy::Stage, reason::Reason, report::HostRuntime};
use gpu_operator_plan::world::{ContainerFacts, ContainerState, Deletion, Exit, PodFacts, RuntimeClassFacts};
use k8s_openapi::{api::apps::v1::DaemonSet, jiff::Timestamp};

pub(crate) fn fleet(runtime: &str, kubelet: &str, toolkit: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", &format!("{{defaults: {{toolkit: {toolkit}}}}}"));
    let node = sim.node_mut("a");
    (node.runtime, node.kubelet) = (runtime.into(), kubelet.into());
    sim.settle();
    sim
}

#[test]
fn the_pods_for_every_runtime_and_distribution_are_as_reviewed() {
    for (name, runtime, kubelet, toolkit) in [
        ("nri", "containerd://2.1.4", "v1.34.1", "{injection: NRI}"),
        ("containerd", "containerd://1.7.27", "v1.34.1", "{}"),
        ("containerd-class", "containerd://1.7.27", "v1.34.1", "{injection: Runtime, setAsDefault: false}"),
        ("containerd-default", "containerd://1.6.9", "v1.34.1", "{}"),
        ("docker", "docker://27.0.3", "v1.34.1", "{runtimeClass: gpu}"),
        ("crio", "cri-o://1.34.1", "v1.34.1", "{injection: Runtime}"),
        ("k3s", "containerd://2.1.4-k3s1", "v1.34.1+k3s1", "{injection: Runtime}"),
        ("rke2", "containerd://1.7.27-k3s1", "v1.33.1+rke2r1", "{}"),
        ("microk8s", "containerd://1.7.27", "v1.33.1", "{distribution: MicroK8s}"),
        ("k0s", "containerd://1.7.27", "v1.33.1+k0s", "{}"),
        ("folder", "containerd://1.7.27", "v1.34.1", "{installDir: /opt/nvidia}"),
    ] {
        let sim = fleet(runtime, kubelet, toolkit);
        assert_eq!(sim.status("a").phase, Phase::Ready, "{name}: {:?}", sim.status("a"));
        review(&format!("toolkit-{name}"), &sim, &[Stage::Toolkit, Stage::DevicePlugin]);
    }
}

/// Returns how a plain pod, with a limit of `nvidia.com/gpu` and nothing else, gets its GPUs on node `a`: how the plugin
/// answers, and what is changed in the runtime's configuration; then the class that it must set instead.
fn plain_pod(sim: &Sim) -> (String, Option<String>) {
    let pod = |set: &DaemonSet| set.spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    let plugin = pod(sim.sets_of(Stage::DevicePlugin)[0]);
    let env = plugin.containers.into_iter().flat_map(|container| container.env.unwrap_or_default());
    let strategy = env.into_iter().find(|env| env.name == "DEVICE_LIST_STRATEGY").and_then(|env| env.value);
    let toolkit = sim.sets_of(Stage::Toolkit).into_iter().flat_map(|set| pod(set).init_containers.unwrap_or_default());
    let changes = toolkit.flat_map(|init| init.args.unwrap_or_default());
    let changes =
        changes.filter(|arg| ["--enable-cdi-in-runtime=true", "--set-as-default=true"].contains(&arg.as_str()));
    let how: Vec<String> = strategy.into_iter().chain(changes).collect();
    let status = sim.status("a");
    assert_eq!(status.phase, Phase::Ready, "{status:?}");
    let class = status.message.split_once("; pods that request GPUs must set runtimeClassName: ");
    (how.join(" "), class.map(|(_, class)| class.to_owned()))
}

#[test]
fn a_ready_node_runs_plain_pods_or_its_message_names_their_runtime_class() {
    let (kubeadm, k3s) = ("v1.34.1", "v1.34.1+k3s1");
    let (cdi, by_runtime) = ("cdi-cri", "envvar");
    let enabled = "cdi-cri --enable-cdi-in-runtime=true";
    let default = "envvar --set-as-default=true";
    for (runtime, kubelet, toolkit, how, class) in [
        ("containerd://2.1.4", kubeadm, "{}", cdi, None),
        ("cri-o://1.34.1", kubeadm, "{}", cdi, None),
        ("containerd://1.7.27", kubeadm, "{}", enabled, None),
        ("containerd://1.7.27", kubeadm, "{injection: CDI}", enabled, None),
        ("containerd://1.6.9", kubeadm, "{}", default, None),
        ("docker://27.0.3", kubeadm, "{}", default, None),
        ("docker://27.0.3", kubeadm, "{setAsDefault: false}", by_runtime, Some("nvidia")),
        ("containerd://2.1.4", kubeadm, "{injection: Runtime}", default, None),
        ("containerd://1.7.27-k3s1", k3s, "{runtimeClass: gpu}", by_runtime, Some("gpu")),
    ] {
        let sim = fleet(runtime, kubelet, toolkit);
        let found = plain_pod(&sim);
        assert_eq!((found.0.as_str(), found.1.as_deref()), (how, class), "{toolkit} on {runtime}");
        // The class is offered wherever the runtime has a handler of that name.
        let changed = how != cdi;
        assert_eq!(sim.runtime_classes.len(), usize::from(changed), "{toolkit} on {runtime}");
    }
}

/// Returns the host paths that a pod of a stage mounts.
fn host_paths(sim: &Sim, stage: Stage) -> Vec<String> {
    let pod = sim.sets_of(stage)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    pod.volumes.into_iter().flatten().filter_map(|volume| Some(volume.host_path?.path)).collect()
}

#[test]
fn only_a_toolkit_that_configures_the_runtime_mounts_its_socket() {
    for (runtime, toolkit, mounts) in [
        ("containerd://2.1.4", "{}", None),
        ("containerd://2.1.4", "{injection: NRI}", Some("/var/run/nri")),
        ("containerd://1.7.27", "{}", Some("/run/containerd")),
    ] {
        let sim = fleet(runtime, "v1.34.1", toolkit);
        let sockets = ["/var/run/nri", "/run/containerd", "/var/run", "/run"];
        let of = |stage| host_paths(&sim, stage).into_iter().find(|path| sockets.contains(&path.as_str()));
        assert_eq!(of(Stage::Toolkit).as_deref(), mounts);
        assert_eq!(of(Stage::DevicePlugin), None);
        assert_eq!(of(Stage::Driver), None);
    }
}

#[test]
fn a_node_with_nri_reports_which_pods_the_nri_plugin_serves() {
    for (toolkit, reported) in [("{injection: NRI}", true), ("{injection: CDI}", false)] {
        let sim = fleet("containerd://2.1.4", "v1.34.1", toolkit);
        let status = sim.status("a");
        assert_eq!(status.phase, Phase::Ready, "{toolkit}: {}", status.message);
        assert_eq!(
            status.message.contains("NVIDIA's NRI plugin serves only"),
            reported,
            "{toolkit}: {}",
            status.message
        );
    }
}

/// Ends the main container of the node's toolkit pod with this message.
pub(crate) fn end_with(sim: &mut Sim, words: &str) {
    let pod = sim.pods.get_mut("toolkit@a").expect("a pod");
    let container = &mut pod.containers[0];
    container.state = ContainerState::Ended(Exit { code: 1, message: words.into() });
    container.ready = false;
}

pub(crate) fn not_allocatable(sim: &mut Sim) {
    sim.node_mut("a").allocatable = 0.into();
}

#[test]
fn a_runtime_that_rejects_its_configuration_is_reported_with_its_message() {
    for (words, reason) in [
        (
            "RuntimeConfigRejected: the container runtime does not start: unexpected end of file",
            Reason::RuntimeConfigRejected,
        ),
        ("RuntimeDown: the container runtime does not start: unexpected end of file", Reason::RuntimeDown),
        ("something else: unexpected end of file", Reason::ContainerCrashed),
    ] {
        let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
        end_with(&mut sim, words);
        not_allocatable(&mut sim);
        let plan = sim.plan();
        let write = plan.node_statuses().get(&"a".into()).map(|status| (*status).clone()).expect("a status");
        assert_eq!(write.reason(), Some(reason));
        let message = write.message;
        assert!(message.contains("unexpected end of file"), "{message}");
        assert!(plan.deleted(Kind::Pod).is_empty(), "a rejected configuration is not retried indefinitely");
    }
}

#[test]
fn a_runtime_that_was_removed_from_the_configuration_is_restored_by_a_new_pod() {
    let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
    assert!(sim.plan().deleted(Kind::Pod).is_empty());
    end_with(&mut sim, "RuntimeConfigDrifted: runtime nvidia is no longer in /etc/containerd/config.toml");
    assert_eq!(sim.plan().deleted(Kind::Pod).into_iter().collect::<Vec<_>>(), ["toolkit@a"]);
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
}

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

/// Returns the nodes with a toolkit label but no running toolkit: their runtime may be restarted at any time.
fn restarting(sim: &Sim) -> Vec<NodeName> {
    let labelled = sim.nodes.values().filter(|node| node.labels.contains_key(keys::TOOLKIT));
    let runs = |name: &NodeName| sim.pods.get(&format!("toolkit@{name}")).is_some_and(PodFacts::running);
    labelled.map(|node| node.name.clone()).filter(|name| !runs(name)).collect()
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
    // In pools that restart no runtime, the state of the driver changes nothing.
    let mut at_once = fresh(&nodes, "{}");
    for node in at_once.nodes.values_mut() {
        node.runtime = "containerd://2.1.4".into();
    }
    let mut sim = fresh(&nodes, "{}");
    for sim in [&mut at_once, &mut sim] {
        sim.settle_with(&mut LoopState::default());
    }
    for (cdi, runtime) in
        nodes.iter().map(|node| (at_once.writes[&format!("node/{node}")], sim.writes[&format!("node/{node}")]))
    {
        assert_eq!(runtime, cdi + 2, "one additional write of labels, and its record");
    }
}

/// Returns the number of nodes with a toolkit label.
fn with_toolkit(sim: &Sim) -> usize {
    sim.nodes.values().filter(|node| node.labels.contains_key(keys::TOOLKIT)).count()
}

#[test]
fn where_nvidias_runtime_is_the_default_toolkits_are_removed_one_node_at_a_time() {
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
    let by = sim.now + k8s_openapi::jiff::SignedDuration::from_secs(180);
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
fn a_toolkit_that_is_being_installed_is_removed_once_it_can_restore_the_configuration() {
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
fn a_toolkit_that_is_being_installed_is_replaced_once_it_can_restore_the_configuration() {
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
fn no_toolkit_is_removed_while_another_of_its_pool_is_being_installed() {
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
        let words = "RuntimeDown: the container runtime does not start: unknown key".to_owned();
        sim.faults.insert(node.into(), Faults { restart: Some(words), ..Faults::default() });
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
fn a_node_that_changes_its_pool_keeps_the_turn_in_the_pool_of_its_label() {
    let mut sim = fresh(&["a", "b"], "{}");
    for node in ["a", "b"] {
        let words = "RuntimeConfigRejected: unknown key".to_owned();
        sim.faults.insert(node.into(), Faults { slow: 600, restart: Some(words), ..Faults::default() });
    }
    while restarting(&sim).is_empty() {
        sim.step();
        sim.sleep(1);
    }
    assert_eq!(restarting(&sim), ["a"]);
    sim.pods.get_mut("toolkit@a").into_iter().for_each(|pod| pod.init.clear());
    sim.label("a", keys::MODEL_OVERRIDE, Some("nvidia-l4"));
    let plan = sim.plan();
    let pool = |node: &str| plan.labels().get(&node.into()).and_then(|write| write.labels.get(keys::POOL).cloned());
    assert_eq!(pool("a").as_deref(), Some("nvidia-l4"), "{:?}", plan.labels());
    let restarted = plan.labels().get(&"b".into()).is_some_and(|write| write.labels.contains_key(keys::TOOLKIT));
    assert!(
        !restarted,
        "node a may still restart its runtime, and its label names the pool of node b: {:?}",
        plan.labels()
    );
}

#[test]
fn a_fix_for_many_nodes_restarts_their_runtimes_one_by_one() {
    let nodes = ["a", "b", "c"];
    let mut sim = fresh(&nodes, "{injection: Runtime}");
    sim.settle();
    // All nodes fail at once, and a change that fixes failed nodes is usually applied to all of them at once.
    for node in nodes {
        let words = "RuntimeConfigRejected: the container runtime does not start: unknown key".to_owned();
        sim.faults.insert(node.into(), Faults { restart: Some(words), ..Faults::default() });
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
fn while_a_runtime_does_not_report_its_version_nothing_is_changed() {
    let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
    let (labels, sets, writes) = (sim.node("a").labels.clone(), sim.sets.clone(), sim.writes["node/a"]);
    sim.node_mut("a").runtime = "containerd://Unknown".into();
    sim.run(60);
    assert_eq!((&sim.node("a").labels, sim.writes["node/a"]), (&labels, writes));
    assert!(sim.sets == sets);
    assert_eq!(sim.status("a").phase, Phase::Ready, "the phase depends on allocatable alone");
    not_allocatable(&mut sim);
    let status = sim.plan().node_statuses().get(&"a".into()).map(|status| (*status).clone()).expect("a status");
    assert_eq!(status.reason(), Some(Reason::NodeNotReady), "{status:?}");
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
fn configurations_that_are_overwritten_on_all_nodes_are_repaired_one_node_at_a_time() {
    let nodes = ["a", "b", "c"];
    let mut sim = fresh(&nodes, "{}");
    sim.settle();
    for node in nodes {
        let container = &mut sim.pods.get_mut(&format!("toolkit@{node}")).expect("a pod").containers[0];
        let message = "RuntimeConfigDrifted: runtime nvidia is no longer in /etc/containerd/config.toml".into();
        container.state = ContainerState::Ended(Exit { code: 1, message });
        container.ready = false;
        let words = "RuntimeConfigRejected: the container runtime does not start: unknown key".to_owned();
        sim.faults.insert(node.into(), Faults { restart: Some(words), ..Faults::default() });
    }
    assert_eq!(sim.plan().deleted(Kind::Pod).into_iter().collect::<Vec<_>>(), ["toolkit@a"]);
    sim.run(60);
    let restarted = |sim: &Sim, node: &str| {
        matches!(sim.pods[&format!("toolkit@{node}")].containers[0].state, ContainerState::Waiting { .. })
    };
    assert_eq!(
        nodes.map(|node| restarted(&sim, node)),
        [true, false, false],
        "after one failed restart, no other node restarts"
    );
    sim.faults.clear();
    sim.run(120);
    sim.settle();
    assert!(nodes.iter().all(|node| sim.pods[&format!("toolkit@{node}")].running()));
}

#[test]
fn a_node_that_cannot_restart_its_runtime_or_already_has_does_not_block_others() {
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
fn kubelet_must_list_the_runtime_if_it_lists_any() {
    let mut sim = fleet("containerd://1.7.27", "v1.34.1", "{}");
    not_allocatable(&mut sim);
    for (known, waits) in [(vec![], false), (vec!["runc"], true), (vec!["runc", "nvidia"], false)] {
        let node = sim.node_mut("a");
        node.runtime_handlers = known.iter().map(|name| (*name).into()).collect();
        let status = sim.plan().node_statuses().get(&"a".into()).map(|status| (*status).clone()).expect("a status");
        assert_eq!(status.phase == Phase::Toolkit, waits, "{known:?}: {status:?}");
    }
}

#[test]
fn a_pools_toolkit_overrides_the_defaults_field_by_field() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy(
        "all",
        "{defaults: {toolkit: {injection: Runtime, hostPaths: {socket: /a/b.sock, config: /c/d.toml}}}, pools: [{name: p, toolkit: {runtimeClass: gpu, hostPaths: {socket: /e/f.sock}}}]}",
    );
    sim.settle();
    let pod = sim.sets_of(Stage::Toolkit)[0].spec.clone().and_then(|spec| spec.template.spec).expect("a pod");
    let args = pod.init_containers.expect("steps").into_iter().flat_map(|init| init.args.unwrap_or_default());
    let args: Vec<_> = args.collect();
    for wanted in ["--config=/c/d.toml", "--nvidia-runtime-name=gpu", "--handler=gpu"] {
        assert!(args.iter().any(|arg| arg == wanted), "{wanted}: {args:?}");
    }
    assert!(host_paths(&sim, Stage::Toolkit).contains(&"/e".to_owned()));
}

#[test]
fn policies_share_a_runtime_class_that_is_deleted_with_the_last_one() {
    let spec = |zone: &str| {
        format!("{{nodeSelector: {{matchLabels: {{zone: {zone}}}}}, defaults: {{toolkit: {{injection: Runtime}}}}}}")
    };
    let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8);
    sim.label("a", "zone", Some("a"));
    sim.label("b", "zone", Some("b"));
    sim.apply_policy("one", &spec("a"));
    sim.apply_policy("two", &spec("b"));
    sim.settle();
    assert_eq!(sim.runtime_classes["nvidia"].policies.len(), 2);
    sim.delete_policy("one");
    sim.settle();
    assert_eq!(sim.runtime_classes["nvidia"].policies.len(), 1);
    sim.delete_policy("two");
    sim.settle();
    assert!(sim.runtime_classes.is_empty());
}

#[test]
fn a_third_party_runtime_class_is_not_changed() {
    let foreign = RuntimeClassFacts::default();
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.runtime_classes.insert("nvidia".into(), foreign.clone());
    sim.apply_policy("all", "{defaults: {toolkit: {injection: Runtime}}}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
    sim.delete_policy("all");
    sim.settle();
    assert_eq!(sim.runtime_classes["nvidia"], foreign);
}

#[test]
fn without_a_configured_runtime_no_runtime_class_is_created() {
    assert!(fleet("containerd://2.1.4", "v1.34.1", "{}").runtime_classes.is_empty());
    assert!(fleet("containerd://2.1.4", "v1.34.1", "{injection: NRI}").runtime_classes.is_empty());
}

#[test]
fn a_default_runtime_of_the_host_is_kept_until_plain_pods_need_another_and_then_the_operators_is_kept() {
    let host_runtimes = |default| {
        let (file, handler) = ("/etc/containerd/config.toml".to_owned(), "nvidia".to_owned());
        vec![HostRuntime { file, handler, default }]
    };
    for taken_over in [false, true] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.host_driver("a", "580.95.05", true);
        sim.node_mut("a").runtime = "containerd://1.7.27".into();
        sim.report("a").runtimes = host_runtimes(true);
        sim.apply_policy("all", "{}");
        sim.settle();
        assert!(sim.sets_of(Stage::Toolkit).is_empty());
        assert_eq!(sim.runtime_classes.keys().collect::<Vec<_>>(), ["nvidia"], "pods may refer to it by name");
        assert!(sim.status("a").message.ends_with("; runtime nvidia is configured on the host and left unchanged"));

        // The configuration file is being rewritten: no revision changes, nor does the plugin.
        let groups = |sim: &Sim| member_labels(sim, "a");
        let before = groups(&sim);
        sim.report("a").runtimes.clear();
        sim.settle();
        assert_eq!(groups(&sim), before);

        sim.report("a").runtimes = host_runtimes(taken_over);
        if taken_over {
            sim.apply_policy("all", "{defaults: {foreignStack: TakeOver}}");
        }
        sim.settle();
        assert_eq!(plain_pod(&sim), ("cdi-cri --enable-cdi-in-runtime=true".to_owned(), None));
        sim.report("a").runtimes = host_runtimes(true);
        sim.apply_policy("all", "{}");
        sim.settle();
        assert_eq!(sim.sets_of(Stage::Toolkit).len(), 1, "the toolkit that was installed first stays");
    }
}

#[test]
fn a_runtime_of_the_host_that_is_not_the_default_is_used_only_if_the_policy_forbids_a_default() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.host_driver("a", "580.95.05", true);
    sim.node_mut("a").runtime = "docker://27.0.3".into();
    let (file, handler) = ("/etc/docker/daemon.json".to_owned(), "nvidia".to_owned());
    sim.report("a").runtimes = vec![HostRuntime { file, handler, default: false }];
    sim.apply_policy("all", "{defaults: {toolkit: {setAsDefault: false}}}");
    sim.settle();
    assert!(sim.sets_of(Stage::Toolkit).is_empty());
    assert_eq!(plain_pod(&sim), ("envvar".to_owned(), Some("nvidia".to_owned())));
    sim.apply_policy("all", "{}");
    sim.settle();
    assert_eq!(plain_pod(&sim), ("envvar --set-as-default=true".to_owned(), None));
}

fn member_labels(sim: &Sim, node: &str) -> Vec<(String, String)> {
    let own = sim.node(node).labels.iter().filter(|(key, _)| key.starts_with(keys::PREFIX));
    own.map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

#[test]
fn no_runtime_class_is_written_for_a_runtime_of_the_host_that_none_can_name() {
    for (handler, classes) in [("nvidia-x", &["nvidia-x"][..]), ("nvidia_x", &[])] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8);
        sim.host_driver("a", "580.95.05", true);
        sim.node_mut("a").runtime = "docker://27.0.3".into();
        let (file, handler) = ("/etc/docker/daemon.json".to_owned(), handler.to_owned());
        sim.report("a").runtimes = vec![HostRuntime { file, handler, default: true }];
        sim.apply_policy("all", "{}");
        sim.settle();
        assert_eq!(sim.status("a").phase, Phase::Ready);
        assert_eq!(sim.runtime_classes.keys().collect::<Vec<_>>(), classes);
    }
}

#[test]
fn a_runtime_of_the_host_is_kept_only_with_a_driver_of_the_host() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.node_mut("a").runtime = "docker://27.0.3".into();
    let (file, handler) = ("/etc/docker/daemon.json".to_owned(), "nvidia".to_owned());
    sim.report("a").runtimes = vec![HostRuntime { file, handler, default: true }];
    sim.apply_policy("all", "{}");
    sim.settle();
    let stages = [Stage::Driver, Stage::Toolkit].map(|stage| sim.sets_of(stage).len());
    assert_eq!((stages, sim.status("a").phase), ([1, 1], Phase::Ready));
}

/// Returns a node of GKE's Ubuntu with this runtime and toolkit, a driver in Google's folder, and NVIDIA's device
/// plugin.
fn beside_a_folder(runtime: &str, toolkit: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    let node = sim.node_mut("a");
    (node.runtime, node.kubelet) = (runtime.into(), "v1.33.2".into());
    let driver = &mut sim.report("a").driver;
    driver.loaded = Some("580.1.1".into());
    let root = "/home/kubernetes/bin/nvidia".into();
    driver.installed.push(gpu_operator_crd::report::InstalledDriver {
        root,
        version: "580.1.1".into(),
        ..Default::default()
    });
    sim.apply_policy("all", &format!("{{defaults: {{devicePlugin: {{flavor: Nvidia}}, toolkit: {toolkit}}}}}"));
    sim
}

#[test]
fn a_toolkit_that_only_finds_device_nodes_in_the_drivers_directory_is_rejected() {
    for (runtime, toolkit, words) in [
        ("containerd://1.6.9", "{}", "containerd 1.7 or later"),
        ("docker://27.0.3", "{}", "devicePlugin: {flavor: Gke}"),
        ("containerd://1.7.27", "{injection: Runtime}", "remove toolkit.injection"),
        ("containerd://2.1.4", "{setAsDefault: true}", "toolkit.setAsDefault"),
    ] {
        let mut sim = beside_a_folder(runtime, toolkit);
        sim.run(40);
        let status = sim.status("a");
        assert_eq!(status.reason(), Some(Reason::RuntimeUnsupported), "{runtime} {toolkit}: {}", status.message);
        assert!(status.message.contains(words), "{}", status.message);
    }
    for (runtime, how) in
        [("containerd://2.1.4", "cdi-cri"), ("containerd://1.7.27", "cdi-cri --enable-cdi-in-runtime=true")]
    {
        let mut sim = beside_a_folder(runtime, "{}");
        sim.settle();
        assert_eq!(plain_pod(&sim), (how.to_owned(), None), "{runtime}");
    }
}

#[test]
fn googles_plugin_mounts_kubelets_pod_resources_from_the_distributions_path() {
    let usual = "/var/lib/kubelet";
    for (kubelet, toolkit, chart, root) in [
        ("v1.34.1", "{}", None, usual),
        ("v1.34.1+rke2r1", "{}", None, usual),
        ("v1.34.1+k0s", "{}", None, "/var/lib/k0s/kubelet"),
        ("v1.34.1", "{distribution: MicroK8s}", None, "/var/snap/microk8s/common/var/lib/kubelet"),
        ("v1.34.1+k0s", "{}", Some("/data/kubelet"), "/data/kubelet"),
    ] {
        let mut sim = beside_a_folder("containerd://2.1.4", toolkit);
        sim.settings.kubelet_root = chart.map(str::to_owned);
        sim.node_mut("a").kubelet = kubelet.into();
        sim.apply_policy("all", &format!("{{defaults: {{devicePlugin: {{flavor: Gke}}, toolkit: {toolkit}}}}}"));
        sim.settle();
        let paths = host_paths(&sim, Stage::DevicePlugin);
        assert!(paths.contains(&format!("{root}/pod-resources")), "{kubelet} {toolkit}: {paths:?}");
        // This path is built into kubelet and the plugins.
        assert!(paths.contains(&"/var/lib/kubelet/device-plugins".to_owned()), "{kubelet} {toolkit}: {paths:?}");
    }
}
