//! Other managers that revert what the operator writes: repairs become less and less frequent, everything else goes on, and the user
//! learns who it is.

use crate::{
    health::{publishes, set_health},
    sim::Sim,
};
use gpu_operator_crd::{ConditionType, health::HealthState, keys, policy::Stage, reason::Reason};
use gpu_operator_plan::{loop_memory::LoopState, time::Uptime, world::Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{FieldsV1, ManagedFieldsEntry};
use kube::ResourceExt;
use serde_json::json;

/// The time between two passes.
const STEP: u64 = 10;
const HOUR: u64 = 3600;

/// The beginning of the writes that repair something, what is reported, the simulation, and what the co-writer does.
type Case = (&'static str, &'static str, fn() -> Sim, fn(&mut Sim));

/// A simulation with the operator's loop, and a co-writer that changes something after each pass.
struct Fight {
    sim: Sim,
    carry: LoopState,
    up: u64,
    /// The time of each write of what the co-writer changes, and that of all writes.
    repairs: Vec<u64>,
    of: &'static str,
}

impl Fight {
    /// Begins with a settled simulation, in which the co-writer changes what the writes with this prefix repair.
    fn new(sim: Sim, of: &'static str) -> Self {
        Self { sim, carry: LoopState::default(), up: 0, repairs: Vec::new(), of }
    }

    fn run(&mut self, seconds: u64, flip: fn(&mut Sim)) {
        for _ in 0..seconds / STEP {
            flip(&mut self.sim);
            let made = self.sim.pass(&mut self.carry, Uptime::from_secs(self.up));
            self.repairs.extend(made.iter().filter(|write| write.starts_with(self.of)).map(|_| self.up));
            self.up += STEP;
            self.sim.sleep(STEP.cast_signed());
        }
    }
}

/// Returns a simulation in which a co-writer has changed something after each pass for some time.
pub fn contested(spec: &str, flip: fn(&mut Sim)) -> Sim {
    let mut fight = Fight::new(Sim::settled_fleet(spec, &["a"]), "");
    fight.run(120, flip);
    fight.sim
}

pub fn take_label(sim: &mut Sim) {
    sim.node_mut("a").co_writers.labels = Some("kyverno".into());
    sim.label("a", keys::MODEL, Some("gpu"));
}

fn take_stage_label(sim: &mut Sim) {
    sim.node_mut("a").co_writers.labels = Some("kyverno".into());
    sim.label("a", keys::DEVICE_PLUGIN, Some("other"));
}

fn remove_published_label(sim: &mut Sim) {
    sim.label("a", "accelerator", None);
}

fn contradict_condition(sim: &mut Sim) {
    let now = sim.now;
    let node = sim.node_mut("a");
    node.co_writers.conditions = Some("detector".into());
    let condition = node.own_conditions.get_mut(keys::HEALTH_CONDITION).expect("a condition");
    if condition.status != "True" {
        (condition.status, condition.since) = ("True".into(), Some(now));
    }
}

fn remove_taint(sim: &mut Sim) {
    sim.node_mut("a").co_writers.taints = Some("autoscaler".into());
    sim.node_mut("a").taints.clear();
}

fn change_image(sim: &mut Sim) {
    let name = sim.sets_of(Stage::Driver)[0].name_any();
    let image = Sim::image(&sim.sets[&name]);
    let tag = image.rsplit_once(':').expect("a tag").1;
    let mirrored = format!("mirror.example.com/driver:{tag}");
    if image == mirrored {
        return;
    }
    sim.edit_set(&name, |set| {
        let pod = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).expect("a pod's spec");
        pod.containers[0].image = Some(mirrored);
        set.metadata.managed_fields = Some(vec![ManagedFieldsEntry {
            manager: Some("mirrorer".into()),
            fields_v1: Some(FieldsV1(json!({"f:spec": {"f:template": {"f:spec": {"f:containers": {}}}}}))),
            ..ManagedFieldsEntry::default()
        }]);
    });
}

/// Returns a settled fleet in which a GPU of node `a` is unhealthy, so that the node has a condition and a taint.
fn unhealthy() -> Sim {
    let mut sim = Sim::settled_fleet("{health: {minHealthyGPUs: 7, onUnhealthy: {taint: {}}}}", &["a", "b"]);
    set_health(&mut sim, 3, HealthState::Unhealthy);
    publishes(&mut sim, 7);
    sim.settle();
    sim
}

fn healthy() -> Sim {
    Sim::settled_fleet("{nodeLabels: [{key: accelerator}]}", &["a", "b"])
}

/// Returns the reasons and messages of node `a` and of the policy's condition Stalled.
fn reported(sim: &Sim) -> String {
    let (status, stalled) = (sim.status("a"), sim.policy_status("all").conditions);
    let stalled =
        stalled.into_iter().find(|found| found.type_ == ConditionType::Stalled.as_str()).expect("a condition");
    format!("{}: {}; {}: {}", status.reason().expect("a reason"), status.message, stalled.reason, stalled.message)
}

#[test]
fn repairs_against_another_manager_become_rare() {
    let unknown = "a client without a field manager";
    let cases: [Case; 6] = [
        ("apply DaemonSet driver-", "\"mirrorer\"", healthy, change_image),
        ("apply this operator's labels of node a", "\"kyverno\"", healthy, take_label),
        ("apply this operator's labels of node a", "\"kyverno\"", healthy, take_stage_label),
        ("apply this operator's labels of node a", unknown, healthy, remove_published_label),
        ("apply this operator's conditions of node a", "\"detector\"", unhealthy, contradict_condition),
        ("apply the taints of node a", "\"autoscaler\"", unhealthy, remove_taint),
    ];
    for (of, manager, build, flip) in cases {
        let mut fight = Fight::new(build(), of);
        let before = reported(&fight.sim);
        fight.run(HOUR, flip);
        assert!(fight.repairs[..6].windows(2).all(|pair| pair[1] - pair[0] <= 3 * STEP), "{of}: {:?}", fight.repairs);
        fight.sim.join("c", "2330", 8);
        fight.run(HOUR, flip);
        assert_eq!(fight.sim.status("c").reason(), Some(Reason::AllGpusAllocatable), "{of}: other nodes go on");
        let during = reported(&fight.sim);
        assert!(during.contains(manager) && during.contains("keeps changing"), "{of}: {during}");
        // The first write does not count: nothing is known of earlier ones.
        let repairs = &fight.repairs[1..];
        for start in repairs {
            let within = repairs.iter().filter(|at| (*start..start + HOUR).contains(at)).count();
            assert!(within <= 12, "{of}: {within} from {start}: {repairs:?}");
        }
        fight.run(HOUR / 2, |_| {});
        assert_eq!(reported(&fight.sim), before, "{of}");
        assert!(fight.sim.plan().is_empty(), "{of}: {:#?}", fight.sim.plan());
    }
}

#[test]
fn a_webhook_on_admission_is_no_conflict_and_costs_few_writes() {
    // The object is the same after each repair, for example because its image is taken from a mirror.
    let sim = contested("{}", |sim| {
        let name = sim.sets_of(Stage::Driver)[0].name_any();
        change_image(sim);
        let metadata = &mut sim.sets.get_mut(&name).expect("the set").metadata;
        (metadata.managed_fields, metadata.generation) = (None, Some(1));
    });
    let reported = reported(&sim);
    assert!(!reported.contains("ManagerConflict"), "{reported}");
    let writes = sim.writes_to("daemonset");
    assert!(writes.values().all(|writes| *writes <= 7), "{writes:?}");
    assert!(writes.values().any(|writes| *writes == 7), "{writes:?}");
}

#[test]
fn pods_that_another_controller_deletes_are_created_rarely() {
    let sim = Sim::new().gpu_node("a", "2330", 8).policy("all", crate::validation::ON_INSTALL);
    let mut fight = Fight::new(sim, "create pod validation-");
    fight.sim.faults.insert("a".into(), crate::validation::hanging());
    fight.run(HOUR, |sim| sim.pods.retain(|_, pod| pod.role != Role::Validation));
    let created = &fight.repairs;
    assert!((6..=13).contains(&created.len()), "{created:?}");
    let during = reported(&fight.sim);
    assert!(during.contains("deleting pod validation-"), "{during}");
    fight.sim.faults.clear();
    fight.run(HOUR, |_| {});
    assert_eq!(fight.sim.status("a").reason(), Some(Reason::AllGpusAllocatable));
}

#[test]
fn pods_that_are_recreated_in_vain_are_deleted_rarely() {
    let mut fight = Fight::new(Sim::settled_fleet("{}", &["a"]), "delete pod");
    // Whatever is created is older than the driver's container.
    fight.run(HOUR, |sim| {
        let since = sim.now + jiff::SignedDuration::from_secs(1);
        let driver = sim.pods.get_mut("driver@a").expect("the driver's pod");
        driver.containers[0].state = gpu_operator_plan::world::ContainerState::Running(Some(since.into()));
    });
    assert!((6..=13).contains(&fight.repairs.len()), "{:?}", fight.repairs);
}
