//! What users, administrators, other controllers and machines do.

use gpu_operator_crd::{
    ClusterGpuPolicySpec, NodeName, keys,
    policy::{Readiness, Stage, StartupTaint},
};
use gpu_operator_plan::world::PodFacts;
use proptest::{prelude::*, sample::select};

use crate::{properties::events::taint_at_start, sim::Sim, truth::pod};

/// The policy `all` and its other revision. Both select all nodes without the label [`OUT`].
pub const POLICY: &str = "{nodeSelector: {matchExpressions: [{key: out, operator: DoesNotExist}]}}";
const OTHER_DRIVER: &str = "{nodeSelector: {matchExpressions: [{key: out, operator: DoesNotExist}]}, defaults: {driver: {version: 580.105.08}}}";
/// The first driver, in an image of another name.
const OTHER_IMAGE: &str = "{nodeSelector: {matchExpressions: [{key: out, operator: DoesNotExist}]}, defaults: {driver: {image: {repository: mirror/driver}}}}";
const OUT: &str = "out";

/// An event of a scenario. Those that name no node happen to the fleet or to node `a`.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// The driver is replaced.
    Move,
    /// Back to the first driver.
    Back,
    /// The image of the first driver is another one.
    Repackage,
    Delete,
    /// Argo CD prunes the policy: the collector deletes what the policy owns, despite its finalizer.
    DeleteInForeground,
    Create,
    /// Another policy selects the same nodes.
    Second,
    SecondDeleted,
    Leave(&'static str),
    /// A Node leaves, and the collector has not yet deleted its GpuNode.
    LeaveUncollected(&'static str),
    /// A node of a name that may have been there before.
    Join(&'static str),
    /// A node gets a startup taint, as if it had just registered.
    StartupTaint(&'static str),
    /// The policy has startup taints and conditions of Nodes, or none.
    Readiness(bool),
    /// A machine is rebooted, which its kubelet reports before its probe does.
    Reboot(&'static str),
    /// A GPU pod starts where it does most harm: on a node that is being updated.
    PodStarts,
    /// A GPU pod starts on a node.
    PodRuns(&'static str),
    PodsEnd,
    /// A user changes or removes a label that places pods.
    Stray(&'static str, Stage, Option<&'static str>),
    /// The policy's selector matches the node no longer, or again.
    Selected(&'static str, bool),
    /// The node is excluded from all policies, or included again.
    Managed(&'static str, bool),
    Cordoned(&'static str, bool),
    /// The policy or a GpuNode is written by another version of the API, or can be parsed again.
    PolicyUnparsable(bool),
    GpuNodeUnparsable(&'static str, bool),
    GpuNodeDeleted(&'static str),
}

impl Event {
    /// Lets the event happen, where it can.
    pub fn happen(self, sim: &mut Sim) {
        let has = |sim: &Sim, node: &str| sim.nodes.contains_key(&NodeName::from(node));
        match self {
            Self::Move => apply(sim, OTHER_DRIVER),
            Self::Repackage => apply(sim, OTHER_IMAGE),
            Self::Back | Self::Create => apply(sim, POLICY),
            Self::Second => sim.apply_policy("second", POLICY),
            Self::Delete => delete(sim, "all", Sim::delete_policy),
            Self::DeleteInForeground => delete(sim, "all", Sim::delete_policy_in_foreground),
            Self::SecondDeleted => delete(sim, "second", Sim::delete_policy),
            Self::Leave(node) => sim.leave(&node.into()),
            Self::LeaveUncollected(node) => {
                let gpu_node = sim.gpu_nodes.get(&NodeName::from(node)).cloned();
                sim.leave(&node.into());
                sim.gpu_nodes.extend(gpu_node.map(|gpu_node| (node.into(), gpu_node)));
            }
            Self::Join(node) if !has(sim, node) => sim.join(node, "2330", 8),
            Self::PodStarts => {
                let moving: Vec<_> = sim.nodes.keys().filter(|node| sim.is_moving((*node).clone())).cloned().collect();
                for node in &moving {
                    start_gpu_pod(sim, node);
                }
            }
            Self::PodsEnd => sim.gpu_pods.clear(),
            Self::PolicyUnparsable(is) => set(&mut sim.unparsable_policies, "all".into(), is),
            Self::GpuNodeUnparsable(node, is) => set(&mut sim.unparsable_gpu_nodes, node.into(), is),
            Self::GpuNodeDeleted(node) => drop(sim.gpu_nodes.remove(&NodeName::from(node))),
            Self::StartupTaint(node) if has(sim, node) => {
                taint_at_start(sim.node_mut(node), keys::STARTUP_TAINT, "NoSchedule");
            }
            Self::Readiness(is) => {
                if let Some(policy) = sim.policies.get(&"all".into()) {
                    let spec = ClusterGpuPolicySpec { readiness: readiness(is), ..policy.spec.clone() };
                    sim.apply_spec("all", spec);
                }
            }
            Self::Reboot(node) if has(sim, node) => sim.reboot(node, 0),
            Self::PodRuns(node) if has(sim, node) => start_gpu_pod(sim, &node.into()),
            Self::Stray(node, stage, value) if has(sim, node) => sim.label(node, stage.key(), value),
            Self::Selected(node, is) if has(sim, node) => sim.label(node, OUT, (!is).then_some("true")),
            Self::Managed(node, is) if has(sim, node) => sim.label(node, keys::MANAGED, (!is).then_some("false")),
            Self::Cordoned(node, is) if has(sim, node) => sim.node_mut(node).cordoned = is,
            _ => {}
        }
    }
}

/// Applies a spec to policy `all`, which keeps its strategy, and how schedulers learn that a node is ready.
fn apply(sim: &mut Sim, spec: &str) {
    let before = sim.policies.get(&"all".into()).map(|policy| policy.spec.clone()).unwrap_or_default();
    let ClusterGpuPolicySpec { rollout, readiness, .. } = before;
    let spec = serde_yaml::from_str(spec).expect("a policy's spec");
    sim.apply_spec("all", ClusterGpuPolicySpec { rollout, readiness, ..spec });
}

/// Returns the settings with startup taints and conditions of Nodes, or with none.
fn readiness(is: bool) -> Readiness {
    let startup_taint = is.then(StartupTaint::default);
    Readiness { node_condition: is, startup_taint, ..Readiness::default() }
}

fn delete(sim: &mut Sim, policy: &'static str, delete: impl FnOnce(&mut Sim, &'static str)) {
    if sim.policies.contains_key(&policy.into()) {
        delete(sim, policy);
    }
}

fn set<N: Ord>(set: &mut std::collections::BTreeSet<N>, name: N, is: bool) {
    if is {
        set.insert(name);
    } else {
        set.remove(&name);
    }
}

/// Kubelet admits a pod with a GPU while the device plugin is registered.
fn start_gpu_pod(sim: &mut Sim, node: &NodeName) {
    let plugin = pod(sim, node, Stage::DevicePlugin);
    let offers = sim.served(node) > 0 && plugin.is_some_and(PodFacts::running);
    if offers {
        sim.gpu_pods.entry(node.clone()).or_insert_with(|| vec!["team/training".into()]);
    }
}

pub fn any_event() -> impl Strategy<Value = Event> {
    let fleet = select(vec![
        Event::Move,
        Event::Back,
        Event::Repackage,
        Event::Delete,
        Event::DeleteInForeground,
        Event::Create,
        Event::Second,
        Event::SecondDeleted,
        Event::PodStarts,
        Event::PodsEnd,
        Event::PolicyUnparsable(true),
        Event::Readiness(true),
        Event::Readiness(false),
        Event::PolicyUnparsable(false),
    ]);
    let value = select(vec![None, Some("x")]);
    let on_node = (select(vec!["a", "b"]), select(Stage::ALL.to_vec()), value, any::<bool>(), 0..12_u8);
    let on_node = on_node.prop_map(|(node, stage, value, is, which)| match which {
        0 => Event::Leave(node),
        1 => Event::LeaveUncollected(node),
        2 => Event::Join(node),
        3 => Event::Reboot(node),
        4 => Event::PodRuns(node),
        5 => Event::Stray(node, stage, value),
        6 => Event::Selected(node, is),
        7 => Event::Managed(node, is),
        8 => Event::Cordoned(node, is),
        9 | 10 => Event::StartupTaint(node),
        _ => {
            if is {
                Event::GpuNodeDeleted(node)
            } else {
                Event::GpuNodeUnparsable(node, value.is_some())
            }
        }
    });
    prop_oneof![fleet, on_node]
}
