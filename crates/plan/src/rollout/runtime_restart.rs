//! Container runtimes are restarted on one node of a pool at a time, including first installations, so that a configuration with which the
//! runtime does not start affects only one node.

use std::collections::BTreeSet;

use gpu_operator_crd::{NodeName, PoolName, gpunode::StageRevisions, keys, policy::Stage, reason::Reason};

use crate::{
    assess::{Assessment, PoolMembers, member::Member, pod_failure::pod_failure, verdict::Verdict},
    clock::Clock,
    inventory::membership::{self, name_of},
    note::Note,
    revision,
    rollout::{recreate_pods, toolkit_restart},
    world::{DaemonSets, NodeFacts, World},
};

/// Which nodes of a pool may restart their runtime.
#[derive(Debug)]
pub struct RuntimeRestartLock {
    /// Nodes whose runtime may be restarted at any moment, and the failure by which each blocks the others.
    holders: Vec<(NodeName, Option<String>)>,
    awaited: bool,
    /// Nodes whose toolkit is being added to the configuration. It can remove itself only after that.
    entering: BTreeSet<NodeName>,
    /// Whether the toolkit of one of them has to be replaced, which may become possible without an event.
    pub waits_for_entry: bool,
}

impl RuntimeRestartLock {
    /// `others` are all nodes but the settled ones, none of which holds the lock.
    pub fn of(name: &PoolName, pool: &PoolMembers<'_>, others: &[&NodeFacts], world: &World, clock: &Clock) -> Self {
        let (members, policy, sets) = (&*pool.assessed, pool.settings.policy, &world.daemon_sets);
        let held = members.iter().filter(|Assessment { member, .. }| {
            let pod = member.pod(Stage::Toolkit);
            let tolerated = member.untolerated.is_none() || pod.is_some();
            tolerated && toolkit_restart::is_on_its_way(sets, member.node, &member.have, pod, clock)
        });
        let holders =
            held.map(|Assessment { member, verdict, .. }| (member.node.name.clone(), failure(member, verdict, clock)));
        let unreadable = membership::unreadable_of_pool(world, policy, name);
        let others = unreadable.chain(left_by_record(name, pool, others, world)).filter(|node| {
            let (have, pod) = (revision::labelled_revisions(node), toolkit_restart::pod_on(world, node));
            toolkit_restart::is_on_its_way(sets, node, &have, pod, clock)
        });
        let holders = holders.chain(others.map(|node| (node.name.clone(), None))).collect();
        let enters = |member: &Member<'_>| {
            member.pod(Stage::Toolkit).is_some_and(|pod| toolkit_restart::is_entering(sets, pod, clock))
        };
        let entering = members.iter().map(|assessed| &assessed.member).filter(|member| enters(member));
        let entering = entering.map(|member| member.node.name.clone()).collect();
        Self { holders, awaited: false, entering, waits_for_entry: false }
    }

    /// Returns the part of these revisions that a node may have now, and a note if the rest is pending: a toolkit that restarts the runtime
    /// comes last, and only if no other node has the turn.
    pub fn allowed(&mut self, member: &Member<'_>, revisions: StageRevisions) -> (StageRevisions, Option<Note>) {
        if revisions.toolkit != member.have.toolkit && self.entering.contains(&member.node.name) {
            self.waits_for_entry = true;
            let message = "update pending: the current container toolkit is still being added to the container runtime";
            let note = Note::new(Reason::RolloutPending, message);
            return (StageRevisions { toolkit: member.have.toolkit.clone(), ..revisions }, Some(note));
        }
        if !restarts(member, &revisions) {
            return (revisions, None);
        }
        let there = member.node.ready && !member.node.deleting && member.untolerated.is_none();
        let ripe = there && revisions.driver == member.have.driver && member.driver_done();
        if ripe && self.acquire(member) {
            return (revisions, None);
        }
        // The message does not name the node that has the turn: otherwise each turn would change the status of every node.
        let message =
            "restart of the container runtime pending: runtimes are restarted on one node of a pool at a time";
        let note = ripe.then(|| Note::new(Reason::RuntimeTurnPending, message));
        (StageRevisions { toolkit: member.have.toolkit.clone(), ..revisions }, note)
    }

    pub fn pod_to_recreate(&mut self, member: &Member<'_>, sets: &DaemonSets, clock: &Clock) -> Option<String> {
        let pod = member.pod(Stage::Toolkit).filter(|pod| recreate_pods::is_to_be_recreated(sets, pod, clock))?;
        (toolkit_restart::is_by(sets, pod.revision.as_ref()) && self.acquire(member)).then(|| pod.name.clone())
    }

    /// Whether the node has or gets the turn. Nodes that have failed, as several do if a working runtime breaks, do not block each other's
    /// repair.
    fn acquire(&mut self, member: &Member<'_>) -> bool {
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

    /// Returns the failure that keeps other nodes waiting.
    pub fn halted(self) -> Option<String> {
        self.holders.into_iter().find_map(|(_, why)| why).filter(|_| self.awaited)
    }
}

/// Returns the nodes whose labels still name this pool, although they are members of another one: they have the turn in both.
fn left_by_record<'w>(
    name: &PoolName,
    pool: &PoolMembers<'_>,
    others: &[&'w NodeFacts],
    world: &World,
) -> Vec<&'w NodeFacts> {
    let policy = name_of(pool.settings.policy);
    let is_of_pool = |node: &NodeFacts| {
        node.labels.get(keys::POOL).is_some_and(|pool| pool.as_str() == name.as_str())
            && node.owned_labels.contains(keys::POOL)
    };
    // Members are in the order of their names.
    let members = &pool.assessed;
    let is_member = |name: &NodeName| members.binary_search_by(|assessed| assessed.member.node.name.cmp(name)).is_ok();
    let is_of_policy = |name: &NodeName| {
        world.gpu_nodes.get(name).is_some_and(|gpu_node| gpu_node.spec.policy.as_ref() == Some(&policy))
    };
    let is_left = |node: &&&NodeFacts| is_of_pool(node) && !is_member(&node.name) && is_of_policy(&node.name);
    others.iter().filter(is_left).copied().collect()
}

/// The verdict on a ready node does not contain the failure of its pod.
fn failure(member: &Member<'_>, verdict: &Verdict, clock: &Clock) -> Option<String> {
    let of_pod = || {
        let (reason, message) = pod_failure(member.pod(Stage::Toolkit)?, clock)?;
        Some(format!("node {}: {reason}: {message}", member.node.name))
    };
    let is_away = || {
        let reason = verdict.reason;
        reason
            .is_away()
            .then(|| format!("node {} has reason {reason}; bring it back, or delete the Node", member.node.name))
    };
    is_away().or_else(|| failing(member, verdict)).or_else(of_pod)
}

/// Whether a restart is really needed is known only on the node.
fn restarts(member: &Member<'_>, revisions: &StageRevisions) -> bool {
    let configured = member.toolkit().is_some_and(|toolkit| toolkit.setup().is_some());
    configured && revisions.toolkit.is_some() && revisions.toolkit != member.have.toolkit
}

fn failing(member: &Member<'_>, verdict: &Verdict) -> Option<String> {
    (verdict.reason.is_failure() && !verdict.lacks_a_gpu() || member.overdue().is_some())
        .then(|| format!("node {}: {}: {}", member.node.name, verdict.reason, verdict.message))
}
