//! The events of a fleet, as data, so that a failure shrinks to the few events that cause it.

use gpu_operator_crd::{NodeName, Report, keys, policy::Stage};
use gpu_operator_plan::world::{Bystander, NodeFacts, Role, TaintFact, TrimmedPod};
use kube::ResourceExt;
use proptest::{option, prelude::*, sample::select};

use super::{
    fleet::{self, Machine},
    oracle::Oracle,
    policy_spec::{RandomSpec, random_spec},
};
use crate::sim::{Faults, Program, Sim};

/// The names of policies that may exist at the same time.
const POLICIES: [&str; 3] = ["all", "more", "extra"];
/// The maximum number of nodes.
const MAX_NODES: usize = 8;

#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a handful of them")]
pub enum Event {
    Joins(Machine),
    Node(usize, OnNode),
    /// A user creates or edits one of the policies.
    Policy(usize, RandomSpec),
    PolicyDeleted(usize),
    /// A user edits or deletes one of the DaemonSets.
    SetEdited(usize, Edit),
    SetDeleted(usize),
    /// The operator and the cluster run for this number of seconds.
    Time(u32),
    /// This number of minutes passes at once.
    Pause(i64),
    /// The operator is killed after this number of writes of a pass, and restarted; if true, the cluster continues
    /// meanwhile.
    Killed(usize, bool),
}

#[derive(Clone, Debug)]
pub enum OnNode {
    Leaves,
    GoesAway,
    ComesBack,
    IsCordoned(bool),
    IsBeingDeleted,
    /// A user other than this operator sets or removes a label.
    Labelled(&'static str, Option<&'static str>),
    Tainted(bool),
    /// The node gets a startup taint with this key and effect, as if it had just registered.
    GetsStartupTaint(&'static str, &'static str),
    GpuCount(Option<&'static str>),
    GetsHostDriver,
    /// The packages of the host's driver are upgraded while the earlier module is loaded.
    UpgradesPackages,
    /// This many of its GPUs are bound to vfio-pci.
    PassesThrough(usize),
    /// A pod without a DaemonSet installs a driver.
    GetsForeignPod,
    LosesForeignPod,
    LosesGpu,
    Reboots(usize),
    /// The node reboots, and either its kubelet or its probe does not report that.
    RebootsWith(Fault, usize),
    /// The Node is deleted, but its probe is still running.
    IsDeleted,
    Breaks(Fault),
    Heals,
    GetsGpuPod,
    LosesGpuPod,
    /// A program that requests no GPU uses the driver; if true, its DaemonSet gives way.
    StartsProgram(bool),
    EndsProgram,
    GpuNodeDeleted,
    PodDeleted(Role),
}

#[derive(Clone, Copy, Debug)]
pub enum Fault {
    MissingImages,
    DriverCrash,
    RuntimeDown,
    LoadsAnother,
    PodsForbidden,
    Crashes(Stage),
    PublishesNone,
    MuteProbe,
    NoProbe,
    LateKubelet,
}

#[derive(Clone, Copy, Debug)]
pub enum Edit {
    Image,
    Tolerations,
    Mark,
}

/// Returns a label that a user sets or removes: one that policies select on, a cloud's, one that a policy publishes, or
/// one of this operator.
fn label() -> BoxedStrategy<(&'static str, Option<&'static str>)> {
    let published = [
        ("accelerator", "mine"),
        ("example.com/tier", "mine"),
        ("gpu/nividia", "P630"),
        ("nvidia.com/gpu.product", "mine"),
        ("nvidia.com/gpu.family", "hopper"),
        (keys::GPU_PRESENT, "true"),
    ];
    let operators =
        [keys::MODEL, keys::POOL, keys::DRIVER, keys::TOOLKIT, keys::MPS, keys::DEVICE_PLUGIN].map(|key| (key, "x"));
    let labels = prop_oneof![
        6 => fleet::label(),
        3 => select(published.to_vec()),
        1 => select(operators.to_vec()),
        2 => select(vec![(keys::MANAGED, "false"), (keys::MANAGED, "true")]),
    ];
    (labels, any::<bool>()).prop_map(|((key, value), on)| (key, on.then_some(value))).boxed()
}

/// Returns the key and the effect of a startup taint.
pub fn startup_taint() -> BoxedStrategy<(&'static str, &'static str)> {
    let keys = [keys::STARTUP_TAINT, "startup-taint.cluster-autoscaler.kubernetes.io/gpu"];
    (select(keys.to_vec()), select(vec!["NoSchedule", "NoExecute", "PreferNoSchedule"])).boxed()
}

pub fn on_node() -> BoxedStrategy<OnNode> {
    let fault = select(vec![
        Fault::MissingImages,
        Fault::DriverCrash,
        Fault::RuntimeDown,
        Fault::LoadsAnother,
        Fault::PodsForbidden,
        Fault::Crashes(Stage::Toolkit),
        Fault::Crashes(Stage::Mps),
        Fault::PublishesNone,
        Fault::MuteProbe,
        Fault::NoProbe,
    ]);
    let late = select(vec![Fault::LateKubelet, Fault::MuteProbe]);
    let count = option::of(select(vec!["2", "8", "none"]));
    let roles: Vec<_> =
        Stage::ALL.into_iter().map(Role::Operand).chain([Role::Probe, Role::Validation, Role::Preflight]).collect();
    prop_oneof![
        1 => Just(OnNode::Leaves),
        1 => Just(OnNode::GoesAway),
        2 => Just(OnNode::ComesBack),
        1 => any::<bool>().prop_map(OnNode::IsCordoned),
        1 => Just(OnNode::IsBeingDeleted),
        5 => label().prop_map(|(key, value)| OnNode::Labelled(key, value)),
        1 => any::<bool>().prop_map(OnNode::Tainted),
        2 => startup_taint().prop_map(|(key, effect)| OnNode::GetsStartupTaint(key, effect)),
        1 => count.prop_map(OnNode::GpuCount),
        1 => Just(OnNode::GetsHostDriver),
        1 => Just(OnNode::UpgradesPackages),
        1 => (0..4_usize).prop_map(OnNode::PassesThrough),
        2 => Just(OnNode::GetsForeignPod),
        1 => Just(OnNode::LosesForeignPod),
        1 => Just(OnNode::LosesGpu),
        2 => (0..3_usize).prop_map(OnNode::Reboots),
        2 => (late, 0..3_usize).prop_map(|(fault, lost)| OnNode::RebootsWith(fault, lost)),
        1 => Just(OnNode::IsDeleted),
        3 => fault.prop_map(OnNode::Breaks),
        3 => Just(OnNode::Heals),
        3 => Just(OnNode::GetsGpuPod),
        3 => Just(OnNode::LosesGpuPod),
        1 => any::<bool>().prop_map(OnNode::StartsProgram),
        1 => Just(OnNode::EndsProgram),
        1 => Just(OnNode::GpuNodeDeleted),
        1 => select(roles).prop_map(OnNode::PodDeleted),
    ]
    .boxed()
}

pub fn event() -> BoxedStrategy<Event> {
    let edit = select(vec![Edit::Image, Edit::Tolerations, Edit::Mark]);
    prop_oneof![
        2 => fleet::machine().prop_map(Event::Joins),
        20 => (0..6_usize, on_node()).prop_map(|(node, what)| Event::Node(node, what)),
        4 => (0..POLICIES.len(), random_spec()).prop_map(|(which, spec)| Event::Policy(which, spec)),
        1 => (0..POLICIES.len()).prop_map(Event::PolicyDeleted),
        1 => (0..9_usize, edit).prop_map(|(set, edit)| Event::SetEdited(set, edit)),
        1 => (0..9_usize).prop_map(Event::SetDeleted),
        8 => (1..20_u32).prop_map(Event::Time),
        1 => (1..60_i64).prop_map(Event::Pause),
        3 => (0..12_usize, any::<bool>()).prop_map(|(writes, away)| Event::Killed(writes, away)),
    ]
    .boxed()
}

/// Returns the first events: some machines join, and some policies are created.
pub fn beginning() -> BoxedStrategy<Vec<Event>> {
    let machines = prop::collection::vec(fleet::machine().prop_map(Event::Joins), 1..6);
    (machines, policies())
        .prop_map(|(mut machines, policies)| {
            machines.extend(policies);
            machines
        })
        .boxed()
}

/// Returns the creation of one policy, or of several that may overlap.
pub fn policies() -> BoxedStrategy<Vec<Event>> {
    prop::collection::vec(random_spec(), 1..4)
        .prop_map(|specs| specs.into_iter().enumerate().map(|(which, spec)| Event::Policy(which, spec)).collect())
        .boxed()
}

/// Returns the name of the n-th node.
pub fn nth(sim: &Sim, index: usize) -> Option<NodeName> {
    sim.nodes.keys().nth(index % sim.nodes.len().max(1)).cloned()
}

/// Applies an event to a fleet.
pub fn apply_event(sim: &mut Sim, oracle: &mut Oracle, event: &Event) {
    match event {
        Event::Joins(machine) if sim.nodes.len() < MAX_NODES => {
            let name =
                (0..1000).map(|index| NodeName::from(format!("n{index}"))).find(|name| !sim.nodes.contains_key(name));
            machine.join(sim, &name.expect("a free name"));
        }
        Event::Joins(_) => {}
        Event::Node(index, what) => {
            if let Some(name) = nth(sim, *index) {
                apply_to_node(sim, &name, what);
                if matches!(what, OnNode::GpuNodeDeleted) {
                    // The record of its update is deleted with it.
                    oracle.forget(&name);
                }
            }
        }
        Event::Policy(which, spec) => sim.apply_spec(POLICIES[*which], spec.0.clone()),
        Event::PolicyDeleted(which) => {
            let policy = POLICIES[*which].into();
            if sim.policies.contains_key(&policy) {
                sim.delete_policy(policy);
            }
        }
        Event::SetEdited(index, edit) => {
            if let Some(name) = nth_set(sim, *index) {
                sim.edit_set(&name, |set| edit_set(set, *edit));
            }
        }
        Event::SetDeleted(index) => {
            if let Some(name) = nth_set(sim, *index) {
                sim.delete_set(&name);
            }
        }
        Event::Time(steps) => {
            for _ in 0..*steps {
                oracle.step(sim);
            }
        }
        Event::Pause(minutes) => sim.sleep(minutes * 60),
        Event::Killed(writes, away) => {
            oracle.killed(sim, *writes);
            if *away {
                sim.surroundings();
                sim.sleep(1);
            }
            oracle.step(sim);
        }
    }
}

fn nth_set(sim: &Sim, index: usize) -> Option<String> {
    sim.sets.keys().nth(index % sim.sets.len().max(1)).cloned()
}

fn edit_set(set: &mut k8s_openapi::api::apps::v1::DaemonSet, edit: Edit) {
    let pod = set.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()).expect("a pod's spec");
    match edit {
        Edit::Image => pod.containers[0].image = Some("registry.example.com/other:1".into()),
        Edit::Tolerations => pod.tolerations = None,
        Edit::Mark => set.metadata.annotations = None,
    }
}

pub fn apply_to_node(sim: &mut Sim, name: &NodeName, what: &OnNode) {
    let of_gpus = |machine: &Report| !machine.gpus.is_empty() || machine.passed_through > 0;
    let (has_gpus, moving) = (sim.machines.get(name).is_some_and(of_gpus), sim.is_moving(name));
    let foreign_pod_there = sim.foreign_pod_on(name);
    let node = sim.nodes.get_mut(name).expect("a node");
    match what {
        OnNode::Leaves => sim.leave(name),
        OnNode::GoesAway => node.ready = false,
        OnNode::ComesBack => node.ready = true,
        OnNode::IsCordoned(cordoned) => node.cordoned = *cordoned,
        OnNode::IsBeingDeleted => node.deleting = true,
        OnNode::Labelled(key, value) => sim.label(name, key, *value),
        OnNode::Tainted(on) => {
            let taint = TaintFact { key: "dedicated".into(), value: "ml".into(), effect: "NoSchedule".into() };
            node.taints = if *on { vec![taint] } else { vec![] };
        }
        OnNode::GetsStartupTaint(key, effect) => taint_at_start(node, key, effect),
        OnNode::GpuCount(count) => node.gpu_count = count.map(Into::into),
        OnNode::GetsHostDriver if has_gpus && !node.labels.contains_key(keys::DRIVER) => {
            sim.host_driver(name, "550.1.1", true);
        }
        OnNode::UpgradesPackages if has_gpus => sim.upgrade_packages(name),
        OnNode::PassesThrough(count) if has_gpus => sim.pass_through(name, *count),
        OnNode::GetsForeignPod if foreign_pod_there.is_none() => sim.foreign_pods.push(foreign_pod(name)),
        OnNode::LosesForeignPod => {
            sim.foreign_pods.retain(|pod| Some(pod.name_any()) != foreign_pod_there);
        }
        OnNode::LosesGpu if has_gpus => drop(sim.report(name).gpus.pop()),
        OnNode::Reboots(lost) => sim.reboot(name, *lost),
        OnNode::RebootsWith(fault, lost) => {
            sim.faults.insert(name.clone(), faults(*fault));
            sim.reboot(name, *lost);
        }
        OnNode::IsDeleted => sim.leave_with_a_running_probe(name),
        OnNode::Breaks(fault) => drop(sim.faults.insert(name.clone(), faults(*fault))),
        OnNode::Heals => drop(sim.faults.remove(name)),
        // The scheduler places a GPU pod where it assumes an allocatable GPU; its view of the node may be outdated.
        OnNode::GetsGpuPod if node.allocatable.total() > 0 || moving => {
            sim.gpu_pods.insert(name.clone(), vec!["team/training".into()]);
        }
        OnNode::LosesGpuPod => drop(sim.gpu_pods.remove(name)),
        OnNode::StartsProgram(gives_way) if has_gpus => {
            let pod = "monitoring/exporter".to_owned();
            let pod = if *gives_way { Bystander::GivesWay(pod) } else { Bystander::Stays(pod) };
            sim.programs.insert(name.clone(), vec![Program::of_pod("exporter", pod)]);
        }
        OnNode::EndsProgram => drop(sim.programs.remove(name)),
        OnNode::GpuNodeDeleted => drop(sim.gpu_nodes.remove(name)),
        OnNode::PodDeleted(role) => {
            sim.pods.retain(|_, pod| pod.node != *name || pod.role != *role);
        }
        OnNode::UpgradesPackages
        | OnNode::PassesThrough(_)
        | OnNode::GetsHostDriver
        | OnNode::GetsForeignPod
        | OnNode::LosesGpu
        | OnNode::GetsGpuPod
        | OnNode::StartsProgram(_) => {}
    }
}

/// Adds a startup taint to a node.
pub fn taint_at_start(node: &mut NodeFacts, key: &str, effect: &str) {
    let taint = TaintFact { key: key.into(), value: "true".into(), effect: effect.into() };
    if !node.taints.iter().any(|present| present.same(&taint)) {
        node.taints.push(taint);
    }
}

fn foreign_pod(node: &NodeName) -> TrimmedPod {
    let pod = format!(
        "{{metadata: {{name: orphan-{node}, namespace: other, labels: {{app.kubernetes.io/component: nvidia-driver}}}}, spec: {{nodeName: {node}, volumes: [{{name: v, hostPath: {{path: /run/nvidia}}}}], containers: [{{name: c, securityContext: {{privileged: true}}, volumeMounts: [{{name: v, mountPath: /m}}]}}]}}}}"
    );
    serde_yaml::from_str(&pod).expect("a pod")
}

fn faults(fault: Fault) -> Faults {
    let none = Faults::default;
    let text = str::to_owned;
    match fault {
        Fault::MissingImages => Faults { missing_images: [text("590.10.01"), text("580.173.02")].into(), ..none() },
        Fault::RuntimeDown => {
            Faults { restart: Some(text("RuntimeDown: the container runtime does not start")), ..none() }
        }
        Fault::DriverCrash => Faults { driver_crash: Some(text("no headers")), ..none() },
        Fault::LoadsAnother => Faults { loads_instead: Some(text("1.2.3")), ..none() },
        Fault::PodsForbidden => Faults { pods_forbidden: Some("violates PodSecurity"), ..none() },
        Fault::Crashes(stage) => Faults { crashing: Some(stage), ..none() },
        Fault::PublishesNone => Faults { publishes: Some(0), ..none() },
        Fault::MuteProbe => Faults { mute_probe: true, ..none() },
        Fault::NoProbe => Faults { no_probe: true, ..none() },
        Fault::LateKubelet => Faults { late_kubelet: true, ..none() },
    }
}
