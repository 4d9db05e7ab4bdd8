//! The message of every reason, as one document. Each scenario leads to a reason; the snapshot contains the message with
//! which the reason is reported.

mod driver;
mod gpus;
mod node;
mod policy;
mod stages;

use std::collections::BTreeSet;
use test_support::planned::Planned;

use crate::{
    schemas,
    sim::{Faults, Sim},
};
use gpu_operator_crd::{NodeName, reason::Reason};
use gpu_operator_plan::{Plan, output::events::Subject, world::World};
use strum::IntoEnumIterator;

/// The place where a reason is reported.
#[derive(Clone, Copy, Debug)]
enum Place {
    /// The status of the GpuNode of this name.
    GpuNode(&'static str),
    /// The condition of this type of GpuNode `a`.
    NodeStage(&'static str),
    /// The condition of this type of policy `all`.
    Condition(&'static str),
    /// The pool of this name of policy `all`.
    Pool(&'static str),
    /// The nodes of policy `all` that need attention.
    Attention,
    NodeEvent,
    /// The condition of the Node of this name.
    NodeCondition(&'static str),
}

use Place::{Attention, Condition, GpuNode, NodeCondition, NodeEvent, NodeStage, Pool};

/// The GpuNode of the only node in most scenarios.
const A: Place = GpuNode("a");

/// A reason, the place where it is reported, and a simulation that leads to it.
type Scenario = (Reason, Place, fn() -> Sim);

fn scenarios() -> Vec<Scenario> {
    [node::SCENARIOS, driver::SCENARIOS, stages::SCENARIOS, gpus::SCENARIOS, policy::SCENARIOS].concat()
}

/// Returns the simulation of every scenario, with the reason that it leads to.
pub fn simulations() -> impl Iterator<Item = (Reason, Sim)> {
    scenarios().into_iter().map(|(reason, _, build)| (reason, build()))
}

/// The steps of a scenario.
pub trait Steps {
    /// Applies a change.
    fn then(self, change: impl FnOnce(&mut Sim)) -> Self;

    /// Sets the faults of node `a`.
    fn faulty(self, faults: Faults) -> Self;

    /// Runs for at most this number of seconds, until nothing changes.
    fn run_for(self, seconds: u32) -> Self;

    /// Makes and keeps the plan for the current state, with a change that is not part of the simulation's state.
    fn plan_with(self, change: impl FnOnce(&mut World)) -> Self;
}

impl Steps for Sim {
    fn then(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    fn faulty(self, faults: Faults) -> Self {
        self.then(|sim| drop(sim.faults.insert("a".into(), faults)))
    }

    fn run_for(self, seconds: u32) -> Self {
        self.then(|sim| sim.run(seconds))
    }

    fn plan_with(self, change: impl FnOnce(&mut World)) -> Self {
        let mut world = self.world();
        change(&mut world);
        let plan = self.plan_for(world);
        self.then(|sim| sim.plans.push(plan))
    }
}

/// Returns the entry of the document for a reason if a plan reports the reason at a place.
fn entry(plan: &Plan, reason: Reason, place: Place) -> Option<String> {
    let of_policy = || plan.statuses.get(&"all".into());
    let (origin, message) = match place {
        GpuNode(node) => {
            let status = plan.node_statuses().remove(&NodeName::from(node))?;
            let origin = format!("GpuNode, phase {}", status.phase.as_str());
            (status.reason() == Some(reason)).then(|| (origin, status.message.clone()))?
        }
        NodeStage(kind) => {
            let mut conditions = plan.node_statuses().remove(&"a".into())?.conditions.iter();
            let found = conditions.find(|found| found.type_ == kind && found.reason == reason.as_str())?;
            (format!("GpuNode, condition {kind}={}", found.status), found.message.clone())
        }
        Condition(kind) => {
            let mut conditions = of_policy()?.conditions.iter();
            let found = conditions.find(|found| found.type_ == kind && found.reason == reason.as_str())?;
            (format!("policy, condition {kind}={}", found.status), found.message.clone())
        }
        Pool(name) => {
            let found = of_policy()?.pools.iter().find(|pool| pool.name == name && pool.reason() == Some(reason))?;
            ("pool".to_owned(), found.message.clone())
        }
        Attention => {
            let found = of_policy()?.attention.iter().find(|node| node.reason == reason)?;
            ("policy, attention".to_owned(), found.message.clone())
        }
        NodeEvent => {
            let is_of_node = |subject: &Subject| matches!(subject, Subject::Node(..));
            let found = plan.events().find(|event| event.reason == reason && is_of_node(&event.subject))?;
            ("Event of a Node".to_owned(), found.message.clone())
        }
        NodeCondition(node) => {
            let written = plan.conditions().remove(&NodeName::from(node))?;
            let (kind, found) = written.iter().find(|(_, found)| found.reason == reason.as_str())?;
            (format!("Node, condition {kind}={}", found.status), found.message.clone())
        }
    };
    Some(format!("{reason} ({origin}): {}", without_hash(&message).replace('\n', "\n    ")))
}

/// Returns a message without the hash in the name of a validation pod, which changes with every operand.
pub fn without_hash(message: &str) -> String {
    let prefix = "pod validation-";
    message.split_once(prefix).map_or_else(
        || message.to_owned(),
        |(before, after)| format!("{before}{prefix}HASH{}", after.trim_start_matches(|c: char| c.is_ascii_hexdigit())),
    )
}

/// Runs a scenario and returns the last entry for its reason.
fn run(reason: Reason, place: Place, build: fn() -> Sim) -> Result<String, String> {
    let sim = build().run_for(40);
    if let Some(error) = sim.plans.iter().find_map(schemas::rejection) {
        return Err(format!("{reason}: {error}"));
    }
    let found = sim.plans.iter().rev().find_map(|plan| entry(plan, reason, place));
    found.ok_or_else(|| {
        let nodes = sim.gpu_nodes.keys().map(|node| (node, sim.status(node)));
        let nodes: Vec<_> = nodes.map(|(node, status)| (node, status.reason, status.message)).collect();
        format!("{reason} is not reported at {place:?}: {nodes:?}")
    })
}

#[test]
fn every_reason_is_reported_with_the_reviewed_message() {
    let scenarios = scenarios();
    let covered: BTreeSet<Reason> = scenarios.iter().map(|(reason, ..)| *reason).collect();
    let uncovered: Vec<_> = Reason::iter().filter(|reason| !covered.contains(reason)).collect();
    assert!(uncovered.is_empty(), "reasons without a scenario: {uncovered:?}");
    let (mut entries, failed): (Vec<_>, Vec<_>) =
        scenarios.into_iter().map(|(reason, place, build)| run(reason, place, build)).partition(Result::is_ok);
    assert!(failed.is_empty(), "{failed:#?}");
    entries.sort();
    let document = entries.into_iter().flatten().collect::<Vec<_>>().join("\n");
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!("messages", document);
    });
}
