//! Trust boundaries: a tenant with the rights of one namespace, or an attacker on one node, tries to affect other nodes and objects.

use gpu_operator_crd::{Phase, health::HealthState, keys, policy::Stage, reason::Reason, report::HostRuntime};
use gpu_operator_plan::{output::body::Body, world::TaintFact};
use test_support::planned::Planned;

use crate::{
    health::set_health,
    sim::{Faults, Sim},
};

const COMPONENT: &str = "app.kubernetes.io/component: nvidia-driver";
const DRIVER_MOUNT: &str = "volumes: [{name: v, hostPath: {path: /run/nvidia}}], containers: [{name: c, image: x, securityContext: {privileged: true}, volumeMounts: [{name: v, mountPath: /m, mountPropagation: Bidirectional}]}]";
const RESTRICTED: &str = "containers: [{name: c, image: x, securityContext: {runAsNonRoot: true}}]";

fn add_set(sim: &mut Sim, namespace: &str, name: &str, labels: &str, pod: &str) {
    let file = format!(
        "{{metadata: {{name: {name}, namespace: {namespace}, labels: {{{labels}}}}}, spec: {{selector: {{}}, template: {{metadata: {{labels: {{{labels}}}}}, spec: {{{pod}}}}}}}}}"
    );
    sim.foreign_sets.insert(format!("{namespace}/{name}"), serde_yaml::from_str(&file).expect("a DaemonSet"));
}

/// Adds a pod to a node; `owner` is its DaemonSet, or empty.
fn add_pod(sim: &mut Sim, namespace: &str, node: &str, owner: &str, labels: &str, pod: &str) {
    let owners = if owner.is_empty() { "" } else { "{apiVersion: apps/v1, kind: DaemonSet, name: OWNER, uid: u}" };
    let owners = owners.replace("OWNER", owner);
    let file = format!(
        "{{metadata: {{name: pod-{node}, namespace: {namespace}, labels: {{{labels}}}, ownerReferences: [{owners}]}}, spec: {{nodeName: {node}, {pod}}}}}"
    );
    sim.foreign_pods.push(serde_yaml::from_str(&file).expect("a pod"));
}

fn managed_stages(sim: &Sim, node: &str) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| sim.node(node).labels.contains_key(stage.key())).collect()
}

fn has_the_whole_stack(sim: &Sim, node: &str) -> bool {
    let status = sim.status(node);
    managed_stages(sim, node).len() == 3
        && status.foreign.is_empty()
        && status.reason() == Some(Reason::AllGpusAllocatable)
}

#[test]
fn a_tenants_daemon_set_without_pods_stops_no_install() {
    let selected = format!("nodeSelector: {{nvidia.com/gpu.deploy.driver: \"true\"}}, {RESTRICTED}");
    for (name, labels, pod) in [
        ("innocent", "app: nvidia-driver-installer", RESTRICTED),
        ("nvidia-driver-daemonset", "", RESTRICTED),
        ("selected", "", selected.as_str()),
        // The pods of this one are rejected by Pod Security.
        ("privileged", "", DRIVER_MOUNT),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
        sim.label("a", "nvidia.com/gpu.deploy.driver", Some("true"));
        add_set(&mut sim, "tenant", name, labels, pod);
        sim.settle();
        assert!(has_the_whole_stack(&sim, "a"), "{name}: {}", sim.status("a").message);
    }
}

#[test]
fn a_tenants_daemon_set_with_restricted_pods_stops_no_install() {
    let sockets = "volumes: [{name: v, hostPath: {path: /var/lib/kubelet/device-plugins}}], containers: [{name: c, image: x, volumeMounts: [{name: v, mountPath: /m}]}]";
    // Mounting kubelet's sockets makes a device plugin, and no driver.
    for pod in [sockets, RESTRICTED] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", "{}");
        let labels = "app: nvidia-driver-installer";
        add_set(&mut sim, "tenant", "innocent", labels, DRIVER_MOUNT);
        add_pod(&mut sim, "tenant", "a", "innocent", labels, pod);
        sim.settle();
        assert!(has_the_whole_stack(&sim, "a") && has_the_whole_stack(&sim, "b"), "{}", sim.status("a").message);
    }
}

#[test]
fn a_tenants_restricted_pod_that_is_labelled_stops_no_install() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    add_pod(&mut sim, "tenant", "a", "", COMPONENT, RESTRICTED);
    sim.settle();
    assert!(has_the_whole_stack(&sim, "a"), "{}", sim.status("a").message);
}

#[test]
fn a_privileged_pod_of_another_namespace_proves_no_daemon_set() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    add_set(&mut sim, "tenant", "installer", "app: nvidia-driver-installer", RESTRICTED);
    add_pod(&mut sim, "monitoring", "a", "installer", "app: nvidia-exporter", DRIVER_MOUNT);
    sim.settle();
    assert!(has_the_whole_stack(&sim, "a"), "{}", sim.status("a").message);
}

#[test]
fn a_daemon_set_with_a_privileged_pod_keeps_all_its_nodes() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8);
    add_set(&mut sim, "gpu-stack", "vendor", "", DRIVER_MOUNT);
    add_pod(&mut sim, "gpu-stack", "b", "vendor", "", DRIVER_MOUNT);
    sim.apply_policy("all", "{}");
    sim.run(40);
    for node in ["a", "b"] {
        assert!(!managed_stages(&sim, node).contains(&Stage::Driver), "{node}");
        assert_eq!(sim.status(node).foreign.get("driver").map(String::as_str), Some("gpu-stack/vendor"));
    }
}

#[test]
fn a_daemon_set_counts_while_its_pods_are_recreated() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    add_set(&mut sim, "gpu-stack", "vendor", "", DRIVER_MOUNT);
    add_pod(&mut sim, "gpu-stack", "a", "vendor", "", DRIVER_MOUNT);
    sim.apply_policy("all", "{defaults: {foreignStack: TakeOver}}");
    sim.run(40);
    sim.foreign_pods.clear();
    sim.run(40);
    assert!(!managed_stages(&sim, "a").contains(&Stage::Driver));
    sim.foreign_sets.clear();
    sim.settle();
    assert!(has_the_whole_stack(&sim, "a"), "what is gone is forgotten: {}", sim.status("a").message);
}

#[test]
fn the_stage_label_hides_no_installer_of_another_namespace() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    add_set(&mut sim, "gpu-stack", "vendor", &format!("{}: driver", keys::STAGE), DRIVER_MOUNT);
    add_pod(&mut sim, "gpu-stack", "a", "vendor", "", DRIVER_MOUNT);
    sim.apply_policy("all", "{}");
    sim.run(40);
    assert!(!managed_stages(&sim, "a").contains(&Stage::Driver));
}

#[test]
fn this_operators_own_daemon_sets_are_no_third_party() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let own: Vec<_> = sim.sets.iter().map(|(name, set)| (name.clone(), set.clone())).collect();
    for (name, set) in own {
        add_pod(&mut sim, "gpu-operator", "a", &name, "app: nvidia", DRIVER_MOUNT);
        sim.foreign_sets.insert(format!("gpu-operator/{name}"), set);
    }
    sim.settle();
    assert!(has_the_whole_stack(&sim, "a"), "{}", sim.status("a").message);
}

/// Returns a fleet with Docker; each host has configured one of these runtimes as the default.
fn with_docker(handlers: &[String]) -> Sim {
    let mut sim = Sim::new();
    for (at, handler) in handlers.iter().enumerate() {
        let node = format!("node-{at}");
        sim = sim.gpu_node(node.as_str(), "2330", 8);
        sim.node_mut(node.as_str()).runtime = "docker://27.0.3".into();
        set_runtime(&mut sim, &node, handler);
        sim.host_driver(node.as_str(), "580.95.05", true);
    }
    sim
}

fn set_runtime(sim: &mut Sim, node: &str, handler: &str) {
    let (file, handler) = ("/etc/docker/daemon.json".to_owned(), handler.to_owned());
    sim.report(node).runtimes = vec![HostRuntime { file, handler, default: true }];
}

#[test]
fn a_probe_creates_no_runtime_class_in_anothers_name() {
    let mut sim = with_docker(&["gvisor".to_owned()]).policy("all", "{}");
    sim.settle();
    assert_eq!(sim.status("node-0").phase, Phase::Ready);
    assert_eq!(sim.runtime_classes.len(), 0, "{:?}", sim.runtime_classes);
}

#[test]
fn probes_create_a_bounded_number_of_runtime_classes() {
    let handlers: Vec<_> = (0..12).map(|at| format!("nvidia-{at}")).collect();
    let mut sim = with_docker(&handlers).policy("all", "{}");
    sim.settle();
    assert_eq!(sim.runtime_classes.len(), 8, "of many nodes");
    let mut sim = with_docker(&handlers[..1]).policy("all", "{}");
    for handler in &handlers {
        set_runtime(&mut sim, "node-0", handler);
        sim.settle();
    }
    assert_eq!(sim.runtime_classes.len(), 8, "of one node, one after the other");
}

#[test]
fn a_node_that_forges_the_record_of_a_taint_keeps_the_taint() {
    let taint = |key: &str| TaintFact { key: key.into(), value: String::new(), effect: "NoSchedule".into() };
    // A key that only another policy's status confirms, and one that no policy names.
    for (forged, is_removed) in [("example.com/earlier", true), ("quarantine", false)] {
        let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
        sim.apply_policy(
            "other",
            "{nodeSelector: {matchLabels: {no: node}}, health: {onUnhealthy: {taint: {key: example.com/earlier}}}}",
        );
        sim.settle();
        let forge = |sim: &mut Sim| {
            sim.node_mut("a").taints = vec![taint(forged)];
            sim.node_mut("a").own_taint = Some(taint(forged));
        };
        // Of a node that a policy governs, whose GPU is or is not healthy, and of one that it leaves.
        for spec in ["{}", "{health: {minHealthyGPUs: 1, onUnhealthy: {taint: {}}}}"] {
            for state in [HealthState::Healthy, HealthState::Unhealthy] {
                sim.apply_policy("all", spec);
                sim.settle();
                forge(&mut sim);
                set_health(&mut sim, 0, state);
                sim.settle();
                assert_eq!(!sim.node("a").taints.contains(&taint(forged)), is_removed, "{forged} {spec} {state:?}");
            }
        }
        forge(&mut sim);
        sim.delete_policy("all");
        sim.settle();
        assert!(!sim.policies.contains_key(&"all".into()));
        assert_eq!(!sim.node("a").taints.contains(&taint(forged)), is_removed, "{forged}");
    }
}

#[test]
fn a_taints_key_is_listed_before_and_while_it_is_used() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    let spec = |key: &str| format!("{{health: {{minHealthyGPUs: 1, onUnhealthy: {{taint: {{key: {key}}}}}}}}}");
    set_health(&mut sim, 0, HealthState::Unhealthy);
    let (mut listed, mut plans) = (vec![], 0);
    for key in ["a/x", "b/y", "c/z"] {
        sim.apply_policy("all", &spec(key));
        sim.settle();
        // A plan may set a taint only if the status that an earlier plan has written lists its key, and forget no key that a node has.
        for plan in &sim.plans[plans..] {
            let own = plan.taints().into_values().filter_map(|write| write.own.as_ref());
            for taint in own.map(|own| own.wanted.as_ref()) {
                assert!(taint.is_none_or(|taint| listed.contains(&taint.key)), "{taint:?} is not in {listed:?}");
            }
            let mut statuses = plan.writes.iter().filter_map(|write| match &write.body {
                Body::PolicyStatus(status) => Some(status.published_keys.clone()),
                _ => None,
            });
            listed = statuses.next_back().unwrap_or(listed);
        }
        plans = sim.plans.len();
        assert_eq!(listed, [key], "once no node has a taint with an earlier key");
        let taints: Vec<_> = sim.node("a").taints.iter().map(|taint| taint.key.clone()).collect();
        assert_eq!(taints, listed);
    }
}

#[test]
fn credentials_in_the_ends_of_logs_reach_no_status_or_event() {
    let url = "https://user:canary@mirror.example.com/a.run?token=canary";
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{}");
    let driver_crash = Some(format!("curl: (22) {url}: 403"));
    sim.faults.insert("a".into(), Faults { driver_crash, ..Faults::default() });
    sim.run(60);
    let message = &sim.status("a").message;
    assert!(message.contains("https://***@mirror.example.com/a.run?***"), "{message}");
    let policies: Vec<_> = sim.policies.values().map(|policy| &policy.status).collect();
    let nodes: Vec<_> = sim.gpu_nodes.values().map(|gpu_node| &gpu_node.status).collect();
    let events: Vec<_> = sim.plans.iter().flat_map(|plan| &plan.writes).map(|write| &write.events).collect();
    assert!(events.iter().any(|events| !events.is_empty()));
    let written = format!("{policies:?} {nodes:?} {events:?} {:?}", sim.node("a"));
    assert!(!written.contains("canary"), "{written}");
}
