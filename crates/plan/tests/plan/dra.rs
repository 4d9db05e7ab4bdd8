//! Pools whose GPUs NVIDIA's DRA driver allocates to resource claims, beside pools with a device plugin.

use gpu_operator_crd::{Phase, policy::Stage, reason::Reason};
use gpu_operator_plan::world::GpuSlice;

use crate::{
    law,
    robust::loaded,
    sim::{Faults, Sim},
};

const BY_CLAIMS: &str = "{pools: [{name: claims, allocation: {mode: DRA}}]}";
const BY_PLUGIN: &str = "{pools: [{name: claims}]}";

/// Lets seconds pass, in each of which no GPU is offered twice.
fn pass(sim: &mut Sim, seconds: u32) {
    for _ in 0..seconds {
        sim.steps(1);
        law::of_allocation(sim).expect("no GPU offered twice");
    }
}

/// Lets seconds pass in which a node that waits for kubelet costs no write.
fn pass_without_writes(sim: &mut Sim, seconds: u32) {
    let before = sim.writes.clone();
    pass(sim, seconds);
    assert_eq!(sim.writes, before);
}

/// Returns phase and reason of node `a`, and its GPUs: allocatable, published in slices, and as the status counts them.
fn state(sim: &Sim) -> (Phase, Reason, u32, u32, String) {
    let status = sim.status("a");
    let allocatable = sim.node("a").allocatable.total();
    let published = sim.served(&"a".into()) - allocatable;
    (status.phase, status.reason().expect("a reason"), allocatable, published, status.gpus.summary)
}

const READY: Reason = Reason::AllGpusAllocatable;

fn ready(allocatable: u32, published: u32) -> (Phase, Reason, u32, u32, String) {
    (Phase::Ready, READY, allocatable, published, "8/8".to_owned())
}

fn containers(sim: &Sim) -> Vec<&str> {
    let specs =
        sim.sets_of(Stage::DevicePlugin).into_iter().filter_map(|set| set.spec.as_ref()?.template.spec.as_ref());
    specs.map(|spec| spec.containers[0].name.as_str()).collect()
}

#[test]
fn both_kinds_of_pools_stand_in_one_policy() {
    let policy = "{pools: [{name: claims, match: {nodeSelector: {matchLabels: {kubernetes.io/hostname: a}}}, \
                  allocation: {mode: DRA, dra: {env: [{name: FEATURE_GATES, value: x}]}}}]}";
    let sim = Sim::settled_fleet(policy, &["a", "b"]);
    assert_eq!(state(&sim), ready(0, 8));
    assert!(
        sim.status("a").message.starts_with("8 GPUs are allocatable by resource claims"),
        "{}",
        sim.status("a").message
    );
    assert!(sim.status("a").gpus.by_claims && !sim.status("b").gpus.by_claims);
    assert_eq!((sim.node("b").allocatable.total(), sim.served(&"b".into())), (8, 8));
    assert_eq!(sim.policy_status("all").summary.gpus, "16/16");
    let mut kinds = containers(&sim);
    kinds.sort_unstable();
    assert_eq!(kinds, ["device-plugin", "dra-driver"]);
    let set =
        sim.sets_of(Stage::DevicePlugin).into_iter().find(|set| set.metadata.name.as_ref().unwrap().contains("claims"));
    let pod = set.unwrap().spec.as_ref().unwrap().template.spec.as_ref().unwrap();
    assert_eq!(pod.service_account_name.as_deref(), Some("nodestack-dra-driver"));
    assert_eq!(pod.automount_service_account_token, Some(true));
    let env = pod.containers[0].env.as_ref().unwrap();
    assert!(env.iter().any(|variable| variable.name == "FEATURE_GATES"));
    assert!(sim.world().gpu_requests().claims);
}

#[test]
fn a_node_is_ready_with_the_writes_of_a_device_plugins() {
    let writes = |policy: &str| {
        let Sim { writes, .. } = Sim::settled_fleet(policy, &["a"]);
        (writes["node/a"], writes.len(), writes.values().sum::<u32>())
    };
    assert_eq!(writes(BY_CLAIMS), writes(BY_PLUGIN));
}

#[test]
fn a_gpu_that_is_not_published_is_named() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", BY_CLAIMS);
    for (gpu, number) in sim.report("a").gpus.iter_mut().zip(0..) {
        gpu.uuid = Some(format!("GPU-{number}"));
    }
    sim.faults.insert("a".into(), Faults { publishes: Some(7), ..Faults::default() });
    pass(&mut sim, 60);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(Reason::WaitingForAllocatable)));
    assert!(
        status.message.starts_with("7 of 8 GPUs are published in ResourceSlices without GPU-7; "),
        "{}",
        status.message
    );
    sim.faults.clear();
    pass(&mut sim, 5);
    assert_eq!(state(&sim), ready(0, 8));
}

#[test]
fn allocation_changes_once_no_pod_uses_the_gpus() {
    let mut sim = Sim::settled_fleet(BY_PLUGIN, &["a"]);
    for (policy, before, after) in [(BY_CLAIMS, (8, 0), (0, 8)), (BY_PLUGIN, (0, 8), (8, 0))] {
        sim.gpu_pods.insert("a".into(), vec!["team/train".into()]);
        sim.apply_policy("all", policy);
        pass(&mut sim, 60);
        let status = sim.status("a");
        assert_eq!(
            (status.reason(), status.waits_on.as_slice()),
            (Some(Reason::GpuPodsInUse), &["team/train".to_owned()][..])
        );
        let (_, _, allocatable, published, _) = state(&sim);
        assert_eq!((allocatable, published), before, "{policy}");
        sim.gpu_pods.clear();
        pass(&mut sim, 120);
        assert_eq!(state(&sim), ready(after.0, after.1), "{policy}");
        assert!(sim.spec("a").rollout.is_none());
    }
}

#[test]
fn each_waits_until_the_gpus_of_the_other_are_gone() {
    let mut sim = Sim::settled_fleet(BY_PLUGIN, &["a"]);
    // Kubelet does not report that the plugin's GPUs are gone.
    sim.faults.insert("a".into(), Faults { late_kubelet: true, ..Faults::default() });
    sim.apply_policy("all", BY_CLAIMS);
    pass(&mut sim, 30);
    pass_without_writes(&mut sim, 170);
    let message = sim.status("a").message;
    assert!(message.contains("the DRA driver waits until kubelet has withdrawn 8 allocatable GPUs"), "{message}");
    assert!(sim.spec("a").current.as_ref().unwrap().device_plugin.is_none());
    sim.faults.clear();
    pass(&mut sim, 30);
    assert_eq!(state(&sim), ready(0, 8));
    sim.apply_policy("all", BY_PLUGIN);
    pass(&mut sim, 15);
    pass_without_writes(&mut sim, 10);
    let message = sim.status("a").message;
    assert!(message.contains("the device plugin waits until kubelet has deleted the ResourceSlices"), "{message}");
    pass(&mut sim, 60);
    assert_eq!(state(&sim), ready(8, 0));
}

#[test]
fn updates_reboots_and_a_deleted_policy_keep_to_it() {
    let spec = |driver: &str, rest: &str| {
        format!("{{deletionPolicy: Now, defaults: {{driver: {{version: {driver}}}{rest}}}}}")
    };
    let claims = ", allocation: {mode: DRA}";
    let mut sim = Sim::settled_fleet(&spec("595.91.07", claims), &["a"]);
    sim.apply_policy("all", &spec("590.10.01", claims));
    pass(&mut sim, 120);
    assert_eq!((state(&sim), loaded(&mut sim, "a")), (ready(0, 8), "590.10.01".to_owned()));
    sim.reboot("a", 0);
    pass(&mut sim, 60);
    assert_eq!(state(&sim), ready(0, 8));
    // The slices outlast the driver, and are not taken for those of another one.
    sim.delete_policy("all");
    pass(&mut sim, 10);
    assert_eq!(sim.served(&"a".into()), 8);
    sim.apply_policy("again", &spec("590.10.01", ""));
    pass(&mut sim, 10);
    pass_without_writes(&mut sim, 5);
    pass(&mut sim, 45);
    assert_eq!(state(&sim), ready(8, 0));
    assert!(sim.status("a").foreign.is_empty() && !sim.status("a").gpus.by_claims);
}

#[test]
fn a_node_that_cannot_have_it_is_left_unchanged() {
    let mut sim = Sim::settled_fleet(BY_PLUGIN, &["a"]);
    sim.node_mut("a").kubelet = "v1.33.4".into();
    sim.apply_policy("all", BY_CLAIMS);
    pass(&mut sim, 60);
    assert_eq!(sim.node("a").allocatable.total(), 8);
    let (status, reason) = sim.condition("all", "Accepted");
    assert_eq!((status.as_str(), reason.as_str()), ("False", "InvalidPolicy"));
    let message = sim.message("all", "Accepted");
    assert!(message.contains("requires Kubernetes 1.34 or later, but this node's kubelet is v1.33.4"), "{message}");
}

#[test]
fn a_third_party_in_a_pool_by_claims_is_left_alone() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8);
    sim.gpu_slices.insert("other".into(), GpuSlice { node: "a".into(), ..GpuSlice::default() });
    sim.apply_policy("all", BY_CLAIMS);
    pass(&mut sim, 60);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(Reason::ForeignDraDriver)));
    assert!(!status.gpus.by_claims && containers(&sim).is_empty());
}

#[test]
fn a_device_plugin_beside_the_dra_driver_is_reported() {
    let mut sim = Sim::settled_fleet(BY_CLAIMS, &["a"]);
    sim.unnamed_plugins.insert("a".into(), 8);
    sim.steps(90);
    let status = sim.status("a");
    assert_eq!((status.phase, status.reason()), (Phase::DevicePlugin, Some(Reason::TooManyGpus)), "{}", status.message);
    assert!(
        status.message.contains("8 nvidia.com/gpu are allocatable beside the GPUs of the DRA driver"),
        "{}",
        status.message
    );
}
