//! Coexistence: third-party GPU stacks are recognized per node, left unchanged and reported; one field takes them over.

use crate::sim::Sim;
use gpu_operator_crd::{Phase, keys, policy::Stage, reason::Reason, report::InstalledDriver};
use test_support::planned::Planned;

pub(crate) const TAKE_OVER: &str = "{defaults: {foreignStack: TakeOver}}";

fn set(sim: &mut Sim, name: &str, labels: &str, pod: &str) {
    let file = format!(
        "{{metadata: {{name: {name}, namespace: kube-system, labels: {labels}}}, spec: {{selector: {{}}, template: {{spec: {pod}}}}}}}"
    );
    sim.foreign_sets.insert(format!("kube-system/{name}"), serde_yaml::from_str(&file).expect("a DaemonSet"));
}

pub(crate) fn static_plugin(sim: &mut Sim) {
    let pod = "{nodeSelector: {static: \"yes\"}, volumes: [{name: s, hostPath: {path: /var/lib/kubelet/device-plugins}}], containers: [{name: c, image: nvcr.io/nvidia/k8s-device-plugin:v0.13.0}]}";
    set(sim, "nvidia-device-plugin-daemonset", "{name: nvidia-device-plugin-ds}", pod);
}

fn gke_plugin(sim: &mut Sim) {
    let pod = "{affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: gke-no-default-nvidia-gpu-device-plugin, operator: DoesNotExist}]}]}}}, volumes: [{name: s, hostPath: {path: /var/lib/kubelet/device-plugins}}], containers: []}";
    set(sim, "nvidia-gpu-device-plugin-small-cos", "{k8s-app: nvidia-gpu-device-plugin}", pod);
}

pub(crate) fn nvidias_operator(sim: &mut Sim) {
    for (name, what) in [
        ("nvidia-driver-daemonset", "driver"),
        ("nvidia-container-toolkit-daemonset", "container-toolkit"),
        ("nvidia-device-plugin-daemonset", "device-plugin"),
    ] {
        let pod = format!("{{nodeSelector: {{nvidia.com/gpu.deploy.{what}: \"true\"}}, containers: []}}");
        set(sim, name, "{}", &pod);
    }
}

pub(crate) fn label(sim: &mut Sim, node: &str, key: &str) {
    sim.label(node, key, Some("true"));
}

/// Returns the stages of this operator that a node's labels select.
pub(crate) fn managed_stages(sim: &Sim, node: &str) -> Vec<Stage> {
    Stage::ALL.into_iter().filter(|stage| sim.node(node).labels.contains_key(stage.key())).collect()
}

/// Returns a settled fleet of two nodes with host drivers; a static plugin serves the first one, `third-party`.
pub(crate) fn beside_a_static_plugin(policy: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("third-party", "2330", 8).gpu_node("plain", "2330", 8).policy("all", policy);
    for node in ["third-party", "plain"] {
        sim.host_driver(node, "580.1.1", true);
    }
    static_plugin(&mut sim);
    sim.label("third-party", "static", Some("yes"));
    sim.settle();
    sim
}

#[test]
fn third_party_plugin_nodes_are_ready_by_what_it_offers() {
    let sim = beside_a_static_plugin("{}");
    assert_eq!(
        (managed_stages(&sim, "third-party"), managed_stages(&sim, "plain")),
        (vec![], vec![Stage::Toolkit, Stage::DevicePlugin])
    );
    let status = sim.status("third-party");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::ForeignDevicePlugin)));
    assert!(status.message.contains("kube-system/nvidia-device-plugin-daemonset"), "{}", status.message);
    assert_eq!(sim.status("plain").reason(), Some(Reason::AllGpusAllocatable));
    assert_eq!(sim.node("third-party").labels[keys::MODEL], "nvidia-h100-80gb");
    let policy = sim.policy_status("all");
    assert_eq!((policy.summary.nodes.as_str(), policy.attention.len()), ("2/2", 0));
}

#[test]
fn a_third_party_plugin_may_offer_another_resource() {
    let mut sim = beside_a_static_plugin(
        "{defaults: {devicePlugin: {flavor: External, external: {resourceName: example.com/gpu}}}, readiness: {validation: {mode: OnInstall}}}",
    );
    assert!(
        sim.status("third-party").message.contains("0 of 8 example.com/gpu"),
        "{}",
        sim.status("third-party").message
    );
    sim.foreign_resource = "example.com/gpu".into();
    sim.settle();
    let status = sim.status("third-party");
    assert_eq!((status.phase, status.gpus.summary.as_str()), (Phase::Ready, "8/8"));
    assert_eq!(status.gpus.resources, [("example.com/gpu".to_owned(), 8)].into());
    assert_eq!(sim.status("plain").phase, Phase::DevicePlugin, "the third-party plugin does not serve this node");
}

#[test]
fn third_party_stages_are_kept_until_one_field_takes_them_over() {
    let mut sim = beside_a_static_plugin("{}");
    sim.foreign_sets.clear();
    sim.run(40);
    assert!(managed_stages(&sim, "third-party").is_empty(), "a plugin is also absent for a moment during its upgrade");
    let status = sim.status("third-party");
    assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(Reason::WaitingForAllocatable)));
    assert!(status.message.contains("foreignStack: TakeOver"), "{}", status.message);
    sim.apply_policy("all", TAKE_OVER);
    sim.settle();
    assert_eq!(managed_stages(&sim, "third-party"), [Stage::Toolkit, Stage::DevicePlugin]);
    assert_eq!(sim.status("third-party").reason(), Some(Reason::AllGpusAllocatable));
    assert!(sim.status("third-party").foreign.is_empty());
}

#[test]
fn a_takeover_waits_and_reports_how_to_remove_the_other_stack() {
    for (add, removal_command, opt_out) in [
        (
            gke_plugin as fn(&mut Sim),
            "gke-no-default-nvidia-gpu-device-plugin=true",
            Some("gke-no-default-nvidia-gpu-device-plugin"),
        ),
        (static_plugin, "delete it", None),
    ] {
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", TAKE_OVER);
        sim.host_driver("a", "580.1.1", true);
        sim.label("a", "static", Some("yes"));
        add(&mut sim);
        sim.settle();
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::ForeignDevicePlugin)));
        assert!(status.message.contains(removal_command), "{}", status.message);
        assert!(managed_stages(&sim, "a").is_empty());
        match opt_out {
            Some(key) => label(&mut sim, "a", key),
            None => sim.foreign_sets.clear(),
        }
        sim.settle();
        assert_eq!(managed_stages(&sim, "a"), [Stage::Toolkit, Stage::DevicePlugin], "{removal_command}");
        assert_eq!(sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
    }
}

#[test]
fn nvidias_operator_keeps_its_nodes_until_a_takeover_by_stage() {
    let mut sim = Sim::new().gpu_node("third-party", "2330", 8).gpu_node("managed", "2330", 8).policy("all", "{}");
    nvidias_operator(&mut sim);
    for what in ["driver", "container-toolkit", "device-plugin"] {
        label(&mut sim, "third-party", &format!("nvidia.com/gpu.deploy.{what}"));
    }
    sim.report("third-party").driver.loaded = Some("580.1.1".into());
    let root = InstalledDriver { root: "/run/nvidia/driver".into(), version: "580.1.1".into(), ..Default::default() };
    sim.report("third-party").driver.installed.push(root);
    sim.settle();
    assert!(managed_stages(&sim, "third-party").is_empty());
    assert_eq!(managed_stages(&sim, "managed"), [Stage::Driver, Stage::Toolkit, Stage::DevicePlugin]);
    let status = sim.status("third-party");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::ForeignStack)));
    assert_eq!(status.foreign.len(), 3);
    sim.apply_policy("all", TAKE_OVER);
    for what in ["container-toolkit", "device-plugin"] {
        sim.label("third-party", &format!("nvidia.com/gpu.deploy.{what}"), Some("false"));
    }
    sim.settle();
    assert_eq!(
        managed_stages(&sim, "third-party"),
        [Stage::Toolkit, Stage::DevicePlugin],
        "the driver still belongs to NVIDIA's operator"
    );
    let status = sim.status("third-party");
    assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::ForeignStack)));
    assert!(status.message.contains("nvidia.com/gpu.deploy.driver=false"), "{}", status.message);
}

#[test]
fn a_stack_that_is_added_later_is_reported_and_changes_nothing() {
    for (add, words) in [
        (static_plugin as fn(&mut Sim), "was installed first and stays"),
        (dra_driver, "keep one of them off the node"),
        (
            |sim| orphan(sim, "a", "{}", "/run/nvidia"),
            "pod other/orphan serves this node in addition to the driver of this operator",
        ),
    ] {
        let mut sim = Sim::settled_fleet("{}", &["a"]);
        add(&mut sim);
        sim.label("a", "static", Some("yes"));
        label(&mut sim, "a", "dra");
        sim.settle();
        assert_eq!(managed_stages(&sim, "a").len(), 3, "{words}");
        let status = sim.status("a");
        assert_eq!((status.phase, status.reason()), (Phase::Ready, Some(Reason::StackConflict)));
        assert!(status.message.contains(words), "{}", status.message);
        assert_eq!(sim.policy_status("all").attention[0].node, "a");
    }
}

pub(crate) fn dra_driver(sim: &mut Sim) {
    let pod = "{nodeSelector: {dra: \"true\"}, volumes: [{name: r, hostPath: {path: /var/lib/kubelet/plugins_registry}}], containers: [{name: gpus, image: nvcr.io/nvidia/k8s-dra-driver-gpu:v1}]}";
    set(sim, "nvidia-dra-driver-gpu-kubelet-plugin", "{}", pod);
}

/// Returns a settled fleet of node `claims`, which a DRA driver serves, and node `plain`.
pub(crate) fn beside_a_dra_driver(policy: &str) -> Sim {
    let mut sim = Sim::new().gpu_node("claims", "2330", 8).gpu_node("plain", "2330", 8);
    dra_driver(&mut sim);
    label(&mut sim, "claims", "dra");
    sim.apply_policy("all", policy);
    sim.settle();
    sim
}

#[test]
fn a_node_with_a_dra_driver_does_not_block_its_pools_update() {
    let version = |version: &str| format!("{{pools: [{{name: p, driver: {{version: {version}}}}}]}}");
    let mut sim = beside_a_dra_driver(&version("595.91.07"));
    // A pod uses one of its GPUs through a resource claim.
    sim.gpu_pods.insert("claims".into(), vec!["team/train".into()]);
    sim.apply_policy("all", &version("590.10.01"));
    sim.run(60);
    assert_eq!(sim.report("claims").driver.loaded.as_deref(), Some("595.91.07"));
    assert_eq!(sim.report("plain").driver.loaded.as_deref(), Some("590.10.01"), "no node waits for the other");
    sim.gpu_pods.clear();
    sim.run(60);
    sim.settle();
    assert_eq!(sim.report("claims").driver.loaded.as_deref(), Some("590.10.01"));
    assert!(!sim.is_moving("claims"), "the update is complete");
    assert_eq!(sim.condition("all", "Reconciling").0, "False");
}

#[test]
fn gpu_problems_are_reported_for_nodes_with_a_dra_driver_too() {
    let mut sim = beside_a_dra_driver("{}");
    sim.report("claims").gpus.pop();
    sim.run(40);
    let status = sim.status("claims");
    assert_eq!(status.reason(), Some(Reason::ForeignDraDriver));
    assert!(status.message.contains("7 of 8 expected GPUs are on the PCI bus"), "{}", status.message);
    assert_eq!(sim.policy_status("all").attention.len(), 1);
}

#[test]
fn a_dra_driver_beside_an_external_plugin_keeps_the_toolkit() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", "{defaults: {devicePlugin: {flavor: External}}}");
    sim.run(40);
    assert_eq!(managed_stages(&sim, "a"), [Stage::Driver, Stage::Toolkit]);
    dra_driver(&mut sim);
    label(&mut sim, "a", "dra");
    sim.run(40);
    assert_eq!(managed_stages(&sim, "a"), [Stage::Driver, Stage::Toolkit]);
}

#[test]
fn a_node_with_a_dra_driver_gets_no_plugin_and_is_excluded() {
    let mut sim = beside_a_dra_driver("{}");
    assert_eq!(
        (managed_stages(&sim, "claims"), managed_stages(&sim, "plain").len()),
        (vec![Stage::Driver], 3),
        "this operator still installs the driver"
    );
    let status = sim.status("claims");
    assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(Reason::ForeignDraDriver)));
    assert!(status.message.contains("kube-system/nvidia-dra-driver-gpu-kubelet-plugin"), "{}", status.message);
    assert_eq!(status.deadline, None, "nothing is late");
    let policy = sim.policy_status("all");
    assert_eq!((policy.nodes.ready, policy.nodes.excluded, policy.attention.len()), (1, 1, 0));
    assert_eq!(sim.condition("all", "Ready").0, "True");
    assert_eq!(sim.condition("all", "Reconciling").0, "False");
    assert_eq!((policy.gpus.allocatable, policy.gpus.expected), (8, 8), "node claims is excluded from the counts");
    // The DRA driver is gone, temporarily or permanently: no plugin replaces it, and the node counts as not ready.
    let before = std::mem::take(&mut sim.foreign_sets);
    sim.run(40);
    let status = sim.status("claims");
    assert_eq!(
        (managed_stages(&sim, "claims"), status.reason()),
        (vec![Stage::Driver], Some(Reason::WaitingForAllocatable))
    );
    assert!(status.message.contains("foreignStack: TakeOver"), "{}", status.message);
    assert_eq!(sim.condition("all", "Ready").0, "False");
    sim.foreign_sets = before;
    sim.settle();
    assert_eq!(sim.status("claims").reason(), Some(Reason::ForeignDraDriver));
    sim.apply_policy("all", TAKE_OVER);
    sim.settle();
    assert!(sim.status("claims").message.contains("delete it"), "{}", sim.status("claims").message);
    sim.foreign_sets.clear();
    sim.settle();
    assert_eq!(
        (managed_stages(&sim, "claims").len(), sim.status("claims").reason()),
        (3, Some(Reason::AllGpusAllocatable))
    );
}

/// Adds a pod to a node that belongs to no DaemonSet, with these labels and a path that it mounts with propagation to
/// the host.
fn orphan(sim: &mut Sim, node: &str, labels: &str, path: &str) {
    let pod = format!(
        "{{metadata: {{name: orphan, namespace: other, labels: {labels}}}, spec: {{nodeName: {node}, volumes: [{{name: v, hostPath: {{path: {path}}}}}], containers: [{{name: c, image: x, securityContext: {{privileged: true}}, volumeMounts: [{{name: v, mountPath: /m, mountPropagation: Bidirectional}}]}}]}}}}"
    );
    sim.foreign_pods.push(serde_yaml::from_str(&pod).expect("a pod"));
}

#[test]
fn no_operand_starts_beside_a_driver_pod_without_a_daemon_set() {
    for (labels, path) in [("{app.kubernetes.io/component: nvidia-driver}", "/tmp"), ("{}", "/run/nvidia")] {
        for busy in [false, true] {
            let mut sim = Sim::new().gpu_node("third-party", "2330", 8).gpu_node("managed", "2330", 8);
            orphan(&mut sim, "third-party", labels, path);
            let driver = &mut sim.report("third-party").driver;
            driver.loaded = Some("580.1.1".into());
            driver.container_ran = true;
            driver.installed.push(InstalledDriver {
                root: "/run/nvidia/driver".into(),
                version: "580.1.1".into(),
                ..InstalledDriver::default()
            });
            if busy {
                sim.gpu_pods.insert("third-party".into(), vec!["team/train".into()]);
            }
            sim.apply_policy("all", "{}");
            sim.run(60);
            assert_eq!(
                (managed_stages(&sim, "third-party"), managed_stages(&sim, "managed").len()),
                (vec![], 3),
                "{labels} {busy}"
            );
            let status = sim.status("third-party");
            for words in ["pod other/orphan", "kubectl delete pod --namespace other orphan"] {
                assert!(status.message.contains(words), "{words}: {}", status.message);
            }
            assert!(
                status.foreign.is_empty(),
                "without a DaemonSet, the pod is not recreated, and not recorded: {:?}",
                status.foreign
            );
            // If the driver was left behind, a device plugin usually was too.
            sim.node_mut("third-party").allocatable = [("nvidia.com/gpu", 8)].into_iter().collect();
            let plan = sim.plan();
            let status = plan.node_statuses()[&"third-party".into()];
            assert_eq!(
                (status.phase, status.reason()),
                (Phase::Ready, Some(Reason::ForeignStack)),
                "{}",
                status.message
            );
            assert!(status.message.contains("pod other/orphan"), "{}", status.message);
            // The pod is deleted.
            sim.foreign_pods.clear();
            sim.gpu_pods.clear();
            sim.settle();
            assert_eq!(managed_stages(&sim, "third-party").len(), 3, "{labels} {busy}");
            assert_eq!(sim.status("third-party").reason(), Some(Reason::AllGpusAllocatable));
        }
    }
}

#[test]
fn a_daemon_set_is_a_driver_by_its_mount_into_the_host() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    let pod = "{volumes: [{name: v, hostPath: {path: /run/nvidia}}], containers: [{name: c, image: x, volumeMounts: [{name: v, mountPath: /m, mountPropagation: Bidirectional}]}]}";
    set(&mut sim, "vendor-gpu", "{}", pod);
    sim.apply_policy("all", "{}");
    sim.run(40);
    assert!(!managed_stages(&sim, "a").contains(&Stage::Driver));
    // The installation is in progress: the module is not loaded yet.
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::Driver, Some(Reason::DriverInstalling)), "{}", status.message);
    assert!(status.message.contains("DaemonSet kube-system/vendor-gpu installs the driver"), "{}", status.message);
}
