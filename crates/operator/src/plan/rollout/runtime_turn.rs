//! Whose turn it is to have its container runtime restarted: one node of a pool at a time, first installs included, so that
//! a configuration that a runtime does not survive is met on one node and not on all.

use gpu_operator_crd::{Phase, gpunode::Groups, policy::Stage, reason::Reason};

use super::halts;
use crate::{
    plan::{judge::Verdict, member::Member, note::Note},
    world::PodFacts,
};

/// The turn of one pool.
#[derive(Debug)]
pub struct RuntimeTurn {
    /// Nodes whose runtime may be restarted at any moment, and why each holds up the others, if it does.
    holders: Vec<(String, Option<String>)>,
    /// Whether a node was refused the turn.
    awaited: bool,
}

impl RuntimeTurn {
    /// Who has it already.
    pub fn of(members: &[(&Member<'_>, &Verdict)]) -> Self {
        let held = members.iter().filter(|(member, verdict)| is_restarting(member, verdict));
        let holders = held.map(|(member, verdict)| (member.node.name.clone(), halts(member, verdict))).collect();
        Self { holders, awaited: false }
    }

    /// Gives a node the turn, if no other has it. Of several that have failed, as they do where a runtime breaks that was
    /// well, none stands in the way of another's cure.
    ///
    /// # Errors
    /// The node that has it.
    pub fn take(&mut self, member: &Member<'_>) -> Result<(), String> {
        let name = &member.node.name;
        let (own, others): (Vec<_>, Vec<_>) = self.holders.iter().partition(|(holder, _)| holder == name);
        let in_the_way = others.into_iter().find(|(_, failure)| failure.is_none() || own.is_empty());
        if let Some((other, _)) = in_the_way {
            self.awaited = true;
            return Err(other.clone());
        }
        self.holders.retain(|(holder, _)| holder != name);
        self.holders.push((name.clone(), None));
        Ok(())
    }

    /// What a node that has nothing else takes of what is wanted, and why it takes no more yet. All but the toolkit comes
    /// at once; a node takes the turn when its toolkit would have nothing else to wait for.
    pub fn first_install(&mut self, member: &Member<'_>, want: Groups) -> (Groups, Option<Note>) {
        if !restarts(member, &want) {
            return (want, None);
        }
        let ripe = member.node.ready && !member.node.deleting && member.untolerated.is_none() && member.driver_proven();
        if ripe && self.take(member).is_ok() {
            return (want, None);
        }
        // Who has the turn is not said here: it would be another status for every node with every turn.
        let message =
            "container runtimes are restarted on one node of a pool at a time, and this one waits for its turn";
        let note = ripe.then(|| Note::new(Reason::RuntimeTurnPending, message));
        (Groups { toolkit: member.have.toolkit.clone(), ..want }, note)
    }

    /// Why nobody gets it, if a failure is why and somebody waits for it.
    pub fn halted(self) -> Option<String> {
        self.holders.into_iter().find_map(|(_, why)| why).filter(|_| self.awaited)
    }
}

/// Whether these groups would have a node's runtime restarted. It may turn out to need none, which only the node can tell.
pub fn restarts(member: &Member<'_>, want: &Groups) -> bool {
    is_configured(member) && want.toolkit.is_some() && want.toolkit != member.have.toolkit
}

/// Whether a toolkit is on its way that restarts the runtime. One that waits for a driver that fails will not do so soon.
fn is_restarting(member: &Member<'_>, verdict: &Verdict) -> bool {
    let stuck = verdict.reason.is_failure() || verdict.reason.is_away();
    let stuck_before = stuck && verdict.phase < Phase::Toolkit;
    let runs = member.pod(Stage::Toolkit).is_some_and(PodFacts::running);
    is_configured(member) && member.have.toolkit.is_some() && !runs && !stuck_before
}

fn is_configured(member: &Member<'_>) -> bool {
    member.toolkit().is_some_and(|toolkit| toolkit.setup().is_some())
}
