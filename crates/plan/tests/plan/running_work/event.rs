//! What happens to a fleet.

use gpu_operator_crd::{NodeName, keys, policy::Stage};
use gpu_operator_plan::world::{GpuPod, PodOwner};
use k8s_openapi::jiff::SignedDuration;
use proptest::{prelude::*, sample::select};

use super::policy::{CLAIMS, DEFAULT, NEW, OLD, POOLED, Policy, SELECTED, THIRD};
use crate::sim::{Faults, Sim};

/// Names of nodes.
pub const NODES: [&str; 4] = ["a", "b", "c", "d"];

/// The answer of an API server one of whose webhooks does not answer.
pub const WEBHOOK: &str =
    "Internal error occurred: failed calling webhook \"validate.policies.example.com\": connect: connection refused";

#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A user writes another driver, or other settings of the device plugin.
    Driver(&'static str),
    Plugin(&'static str),
    Paused(bool),
    /// A user adds settings that concern no GPU of the fleet, or removes them.
    More(bool),
    /// The operator is replaced by a release that recommends this driver.
    Recommends(&'static str),
    /// A user asks for another attempt.
    Retry,
    /// The label by which the policy or its pool selects a node is lost, or comes back.
    Selected(&'static str, bool),
    Pooled(&'static str, bool),
    /// The same for all nodes: their labels come from one program.
    AllSelected(bool),
    Managed(&'static str, bool),
    Reboots(&'static str),
    /// A container crashes, once.
    Crashes(&'static str, Stage),
    /// A container crashes again and again.
    Breaks(&'static str, Stage),
    Heals(&'static str),
    /// The containers of a driver crash on every node.
    Broken(&'static str, bool),
    /// The probe does not report, or reports again.
    IsMute(&'static str, bool),
    IsAway(&'static str, bool),
    LosesGpu(&'static str),
    /// An autoscaler takes a node away, and deletes its Node at the end of the drain.
    IsTakenAway(&'static str),
    Leaves(&'static str),
    Joins(&'static str),
    AllLeave,
    AllJoin,
    PodStarts(&'static str, Pod),
    /// A pod is bound to a node in the moment in which its update takes the GPUs.
    PodComesLate(&'static str),
    /// A DaemonSet of a user has pods with GPUs on a node.
    SetComes(&'static str),
    PodsEnd(&'static str),
    /// A webhook of the API server does not answer.
    WebhookDown(bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pod {
    Plain,
    /// It ends ten minutes after it was evicted.
    Slow,
    EmptyDir,
    Bare,
    /// Of a DaemonSet, with data that is deleted with it.
    OfSetWithData,
}

impl Pod {
    fn facts(self) -> GpuPod {
        let owner = match self {
            Self::Bare => PodOwner::None,
            Self::OfSetWithData => PodOwner::DaemonSet,
            _ => PodOwner::Controller,
        };
        let has_empty_dir = matches!(self, Self::EmptyDir | Self::OfSetWithData);
        GpuPod { owner, has_empty_dir, ..GpuPod::default() }
    }
}

impl Event {
    /// Lets the event happen, where it can. `count` makes the names of pods unique.
    pub fn happen(self, sim: &mut Sim, policy: &mut Policy, count: u32) {
        let has = |node: &str| sim.nodes.contains_key(&NodeName::from(node));
        let names: Vec<_> = sim.nodes.keys().cloned().collect();
        match self {
            Self::Driver(driver) => change(sim, policy, |policy| policy.driver = driver),
            Self::Plugin(plugin) => change(sim, policy, |policy| policy.plugin = plugin),
            Self::Paused(is) => change(sim, policy, |policy| policy.is_paused = is),
            Self::More(is) => change(sim, policy, |policy| policy.has_more = is),
            Self::Recommends(driver) => sim.recommend(driver),
            Self::Retry => {
                let annotations = sim.policies.get_mut(&"all".into()).map(|all| &mut all.metadata.annotations);
                annotations.expect("a policy").get_or_insert_default().insert(keys::RETRY.into(), count.to_string());
            }
            Self::Selected(node, is) if has(node) => sim.label(node, SELECTED.0, is.then_some(SELECTED.1)),
            Self::Pooled(node, is) if has(node) => sim.label(node, POOLED.0, is.then_some(POOLED.1)),
            Self::AllSelected(is) => {
                for node in &names {
                    sim.label(node, SELECTED.0, is.then_some(SELECTED.1));
                }
            }
            Self::Managed(node, is) if has(node) => sim.label(node, keys::MANAGED, (!is).then_some("false")),
            Self::Reboots(node) if has(node) => sim.reboot(node, 0),
            Self::Crashes(node, stage) => sim.crash(&format!("{}@{node}", stage.as_str())),
            Self::Breaks(node, stage) if has(node) => {
                sim.faults.insert(node.into(), Faults { crashing: Some(stage), ..Faults::default() });
                let pod = format!("{}@{node}", stage.as_str());
                sim.crash(&pod);
            }
            Self::Heals(node) => drop(sim.faults.remove(&NodeName::from(node))),
            Self::Broken(driver, true) => drop(sim.broken_drivers.insert(driver.into())),
            Self::Broken(driver, false) => drop(sim.broken_drivers.remove(driver)),
            Self::IsMute(node, is) if has(node) => sim.faults.entry(node.into()).or_default().mute_probe = is,
            Self::IsAway(node, is) if has(node) => sim.node_mut(node).ready = !is,
            Self::LosesGpu(node) if has(node) => drop(sim.report(node).gpus.pop()),
            Self::IsTakenAway(node) => sim.take_away(&node.into()),
            Self::Leaves(node) => sim.leave(&node.into()),
            Self::Joins(node) if !has(node) => join(sim, node),
            Self::AllLeave => names.iter().for_each(|node| sim.leave(node)),
            Self::AllJoin => {
                let missing: Vec<_> = NODES.into_iter().filter(|node| !has(node)).collect();
                for node in missing {
                    join(sim, node);
                }
            }
            Self::PodStarts(node, pod) if has(node) && !sim.node(node).cordoned => {
                let name = format!("team/pod-{count}");
                if pod == Pod::Slow {
                    sim.graces.insert(name.clone(), SignedDuration::from_mins(10));
                }
                sim.start_gpu_pod(&node.into(), &name, pod.facts());
            }
            Self::SetComes(node) if has(node) => drop(sim.user_sets.entry(node.into()).or_default()),
            Self::PodsEnd(node) => {
                sim.gpu_pods.remove(&NodeName::from(node));
                sim.user_sets.remove(&NodeName::from(node));
            }
            Self::WebhookDown(is) => {
                for name in names {
                    sim.faults.entry(name).or_default().pods_fail = is.then_some(WEBHOOK);
                }
            }
            _ => {}
        }
    }
}

fn change(sim: &mut Sim, policy: &mut Policy, change: impl FnOnce(&mut Policy)) {
    change(policy);
    sim.apply_policy("all", &policy.yaml());
}

pub fn join(sim: &mut Sim, node: &str) {
    sim.join(node, "2330", 8);
    for (key, value) in [SELECTED, POOLED] {
        sim.label(node, key, Some(value));
    }
}

pub const MPS: &str = "{sharing: {mps: {replicas: 2}}}";
pub const WHOLE: &str = "{mig: {strategy: Mixed, layout: [{profiles: [{profile: 7g.80gb, count: 1}]}]}}";
pub const HALVES: &str = "{mig: {strategy: Mixed, layout: [{profiles: [{profile: 3g.40gb, count: 2}]}]}}";

/// Returns an event, and for how many seconds it is the last one.
pub fn event() -> impl Strategy<Value = (Event, u32)> {
    let node = || select(NODES.to_vec());
    let stage = select(vec![Stage::Driver, Stage::Toolkit, Stage::DevicePlugin]);
    let pods = vec![Pod::Plain, Pod::Plain, Pod::Slow, Pod::EmptyDir, Pod::Bare, Pod::OfSetWithData];
    let of_policy = prop_oneof![
        6 => select(vec![OLD, NEW, NEW, THIRD, DEFAULT]).prop_map(Event::Driver),
        2 => select(vec![OLD, NEW]).prop_map(Event::Recommends),
        4 => select(vec!["{}", MPS, HALVES, CLAIMS]).prop_map(Event::Plugin),
        2 => any::<bool>().prop_map(Event::Paused),
        2 => any::<bool>().prop_map(Event::More),
        1 => Just(Event::Retry),
        2 => (select(vec![NEW, THIRD]), any::<bool>()).prop_map(|(driver, is)| Event::Broken(driver, is)),
        1 => any::<bool>().prop_map(Event::WebhookDown),
        1 => any::<bool>().prop_map(Event::AllSelected),
        1 => Just(Event::AllLeave),
        2 => Just(Event::AllJoin),
    ];
    let of_node =
        (node(), stage, any::<bool>(), select(pods), 0..20_u8).prop_map(|(node, stage, is, pod, which)| match which {
            0 => Event::Selected(node, is),
            1 => Event::Pooled(node, is),
            2 => Event::Managed(node, is),
            3 | 4 => Event::Reboots(node),
            5 | 6 => Event::Crashes(node, stage),
            7 => Event::Breaks(node, stage),
            8 | 9 => Event::Heals(node),
            10 => Event::IsMute(node, is),
            11 => Event::IsAway(node, is),
            12 if is => Event::IsTakenAway(node),
            12 => Event::Leaves(node),
            13 => Event::Joins(node),
            14 | 15 => Event::PodStarts(node, pod),
            16 => Event::PodComesLate(node),
            17 => Event::SetComes(node),
            _ => Event::PodsEnd(node),
        });
    let seconds = prop_oneof![4 => 0..20_u32, 4 => 20..120_u32, 1 => Just(700), 1 => Just(3600)];
    (prop_oneof![of_policy, of_node], seconds)
}
