//! Whose turn it is to have its container runtime restarted: one node of a pool at a time, first installs included, so that
//! a configuration that a runtime does not survive is met on one node and not on all.

use std::collections::BTreeSet;

use gpu_operator_crd::{gpunode::Groups, policy::Stage, reason::Reason};
use k8s_openapi::jiff::Timestamp;

use crate::{
    assess::{assessment::Assessment, member::Member, pod_failure::hold_up, verdict::Verdict},
    note::Note,
    rollout::{decision::halts, recreate_pods, toolkit_restart},
    world::World,
};

/// The turn of one pool.
#[derive(Debug)]
pub struct RuntimeTurn {
    /// Nodes whose runtime may be restarted at any moment, and why each holds up the others, if it does.
    holders: Vec<(String, Option<String>)>,
    /// Whether a node was refused the turn.
    awaited: bool,
    /// Nodes whose toolkit is just being entered: it goes, or gives way to another, once it can take itself out again.
    entering: BTreeSet<String>,
    /// Whether one of those is to have another, which may come by time alone.
    pub waits_for_entry: bool,
}

impl RuntimeTurn {
    /// Who has it already.
    pub fn of(members: &[Assessment<'_>], world: &World, now: Timestamp) -> Self {
        let held = members.iter().filter(|Assessment { member, .. }| {
            let pod = member.pod(Stage::Toolkit);
            let tolerated = member.untolerated.is_none() || pod.is_some();
            tolerated && toolkit_restart::is_on_its_way(world, member.node, &member.have, pod, now)
        });
        let holders = held
            .map(|Assessment { member, verdict, .. }| (member.node.name.clone(), failure(member, verdict, now)))
            .collect();
        let enters = |member: &Member<'_>| {
            member.pod(Stage::Toolkit).is_some_and(|pod| toolkit_restart::is_entering(world, pod, now))
        };
        let entering = members.iter().map(|assessed| &assessed.member).filter(|member| enters(member));
        let entering = entering.map(|member| member.node.name.clone()).collect();
        Self { holders, awaited: false, entering, waits_for_entry: false }
    }

    /// What a node takes now of these groups, and why it takes no more yet. All but a toolkit that restarts the runtime comes
    /// at once; that comes when it would have nothing else to wait for, and no other node has the turn.
    pub fn of_these(&mut self, member: &Member<'_>, groups: Groups) -> (Groups, Option<Note>) {
        if groups.toolkit != member.have.toolkit && self.entering.contains(&member.node.name) {
            self.waits_for_entry = true;
            let message = "its toolkit is just being entered into the container runtime, and gives way to another then";
            let note = Note::new(Reason::RolloutPending, message);
            return (Groups { toolkit: member.have.toolkit.clone(), ..groups }, Some(note));
        }
        if !restarts(member, &groups) {
            return (groups, None);
        }
        let there = member.node.ready && !member.node.deleting && member.untolerated.is_none();
        let ripe = there && groups.driver == member.have.driver && member.driver_done();
        if ripe && self.take(member) {
            return (groups, None);
        }
        // Who has the turn is not said here: it would be another status for every node with every turn.
        let message =
            "container runtimes are restarted on one node of a pool at a time, and this one waits for its turn";
        let note = ripe.then(|| Note::new(Reason::RuntimeTurnPending, message));
        (Groups { toolkit: member.have.toolkit.clone(), ..groups }, note)
    }

    /// The toolkit's pod of a node that is to be made anew and restarts the runtime, if that may be now.
    pub fn renews(&mut self, member: &Member<'_>, world: &World, now: Timestamp) -> Option<String> {
        let pod = member.pod(Stage::Toolkit).filter(|pod| recreate_pods::is_to_be_renewed(world, pod, now))?;
        (toolkit_restart::is_by(world, pod.group.as_deref()) && self.take(member)).then(|| pod.name.clone())
    }

    /// Gives a node the turn, if no other has it. Of several that have failed, as they do where a runtime breaks that was
    /// well, none stands in the way of another's cure.
    fn take(&mut self, member: &Member<'_>) -> bool {
        let name = &member.node.name;
        let (own, others): (Vec<_>, Vec<_>) = self.holders.iter().partition(|(holder, _)| holder == name);
        if others.into_iter().any(|(_, failure)| failure.is_none() || own.is_empty()) {
            self.awaited = true;
            return false;
        }
        self.holders.retain(|(holder, _)| holder != name);
        self.holders.push((name.clone(), None));
        true
    }

    /// Why nobody gets it, if a failure is why and somebody waits for it.
    pub fn halted(self) -> Option<String> {
        self.holders.into_iter().find_map(|(_, why)| why).filter(|_| self.awaited)
    }
}

/// What is the matter with a node that has the turn, if anything is. One that is ready nevertheless does not say so itself.
fn failure(member: &Member<'_>, verdict: &Verdict, now: Timestamp) -> Option<String> {
    let of_pod = || {
        let (reason, message) = hold_up(member.pod(Stage::Toolkit)?, now)?;
        Some(format!("node {}: {reason}: {message}", member.node.name))
    };
    halts(member, verdict).or_else(of_pod)
}

/// Whether these groups would have a node's runtime restarted. It may turn out to need none, which only the node can tell.
fn restarts(member: &Member<'_>, groups: &Groups) -> bool {
    let configured = member.toolkit().is_some_and(|toolkit| toolkit.setup().is_some());
    configured && groups.toolkit.is_some() && groups.toolkit != member.have.toolkit
}
