//! Taints and the cordon of a node. This operator sets and removes the taint of unhealthy GPUs, and only removes startup taints.

use std::collections::BTreeSet;

use gpu_operator_crd::{GpuNodeStatus, NodeName, PoolName, Reason, health::HealthState, policy::StartupTaint};

use crate::{
    assess::{PoolMembers, member::Member},
    inventory::records,
    output::{body::Body, write::Write},
    rollout::terms,
    world::{Lift, NodeFacts, OwnTaint, TaintFact, TaintWrite},
};

const NO_EXECUTE: &str = "NoExecute";
const NO_SCHEDULE: &str = "NoSchedule";

pub fn is_clean(node: &NodeFacts) -> bool {
    has_only(node, None)
}

pub fn removal(node: &NodeFacts) -> Option<Write> {
    (!is_clean(node))
        .then(|| own(node, None))
        .and_then(|own| write_of(node, TaintWrite { own: Some(own), lifted: None }))
}

/// The nodes of a pool whose pods are evicted because of unhealthy GPUs: a mistake, or a cause that many nodes share, must not end the pods
/// of a whole pool, so at most `maxUnavailable` nodes have the taint with the effect `NoExecute` at a time. The others get it with
/// `NoSchedule`.
#[derive(Clone, Debug, Default)]
pub struct Drained<'m> {
    nodes: BTreeSet<&'m NodeName>,
    /// How many others would be drained.
    others: usize,
}

impl<'m> Drained<'m> {
    /// Nodes that have the taint come first, so that no pod is evicted for the sake of another node.
    ///
    /// Settled nodes are neither drained nor unhealthy.
    pub fn of(pool: &'m PoolMembers<'_>) -> Self {
        let members = || pool.assessed.iter().map(|assessed| &assessed.member);
        let Some(first) = members().find(|member| drains(wanted_of_policy(member).as_ref())) else {
            return Self::default();
        };
        let mut most = terms::max_unavailable(first.pool.settings, pool.count());
        let mut wanting = Vec::new();
        for member in members() {
            let is_drained = is_drained(member.node);
            let wants = drains(wanted(member).as_ref());
            // While the health is uncertain, nothing begins.
            if wants && (is_drained || member.health.state == Some(HealthState::Unhealthy)) {
                wanting.push((!is_drained, &member.node.name));
            } else if is_drained {
                most = most.saturating_sub(1);
            }
        }
        wanting.sort_unstable();
        let nodes: BTreeSet<_> = wanting.iter().take(most).map(|(_, node)| *node).collect();
        Self { others: wanting.len() - nodes.len(), nodes }
    }

    /// For the policy's condition.
    pub fn message(&self, pool: &PoolName) -> Option<String> {
        let (most, others) = (self.nodes.len(), self.others);
        (others > 0).then(|| {
            format!(
                "pool {pool}: of {} unhealthy nodes, {others} have the taint with effect NoSchedule instead of NoExecute, because rollout.maxUnavailable allows NoExecute on {most}",
                most + others
            )
        })
    }
}

fn drains(taint: Option<&TaintFact>) -> bool {
    taint.is_some_and(|taint| taint.effect == NO_EXECUTE)
}

fn is_drained(node: &NodeFacts) -> bool {
    node.taints.iter().any(|taint| taint.effect == NO_EXECUTE && node.owns(taint))
}

pub fn write(member: &Member<'_>, status: &GpuNodeStatus, drained: &Drained<'_>) -> Option<Write> {
    let node = member.node;
    let mut wanted = wanted(member);
    if let Some(taint) =
        wanted.as_mut().filter(|taint| taint.effect == NO_EXECUTE && !drained.nodes.contains(&node.name))
    {
        NO_SCHEDULE.clone_into(&mut taint.effect);
    }
    // Until its key is listed in the policy's status, which is written first, the node's taint stays.
    let may_change = wanted.as_ref().is_none_or(|taint| records::publishes_taint(member.policy, &taint.key));
    let changes = may_change && !has_only(node, wanted.as_ref());
    let own = changes.then(|| own(node, wanted));
    write_of(node, TaintWrite { own, lifted: lifted(member, status) })
}

fn write_of(node: &NodeFacts, write: TaintWrite) -> Option<Write> {
    (write != TaintWrite::default()).then(|| Write::new(&node.name, Body::Taints(write)))
}

fn own(node: &NodeFacts, wanted: Option<TaintFact>) -> OwnTaint {
    OwnTaint { wanted, replaced: node.own_taint.clone() }
}

/// Removes startup taints from a node that is ready, by what has been reported and runs since its boot, and not only by a status that may
/// be older.
fn lifted(member: &Member<'_>, status: &GpuNodeStatus) -> Option<Lift> {
    let node = member.node;
    let key = startup_taint(member)?;
    let is_ready = status.is_ready() && member.report.is_some() && member.is_proven();
    is_ready.then(|| Lift { key: key.to_owned(), uid: node.uid.clone(), boot_id: node.boot_id.clone() })
}

/// Whether the node is becoming ready, and its startup taint keeps pods away until then.
pub fn are_awaited(member: &Member<'_>, status: &GpuNodeStatus) -> bool {
    let is_coming = !status.is_ready() && !status.reason().is_some_and(Reason::is_failure);
    is_coming && startup_taint(member).is_some()
}

/// Returns the policy's startup taint, if the node has it.
fn startup_taint<'m>(member: &Member<'m>) -> Option<&'m str> {
    let (policy, node) = (member.policy, member.node);
    let key = policy.spec.readiness.startup_taint.as_ref().map(StartupTaint::key)?;
    node.taints.iter().any(|taint| taint.key == key && !node.owns(taint)).then_some(key)
}

fn wanted_of_policy(member: &Member<'_>) -> Option<TaintFact> {
    member.health_policy.on_unhealthy.taint.as_ref().map(TaintFact::from)
}

/// Returns the taint of unhealthy GPUs, if the node should have it.
pub fn wanted(member: &Member<'_>) -> Option<TaintFact> {
    let wanted = wanted_of_policy(member)?;
    let taints = &member.node.taints;
    let applies = match member.health.state {
        Some(HealthState::Unhealthy) => true,
        Some(HealthState::Healthy | HealthState::Degraded) => false,
        // While the health is uncertain, a tainted node stays tainted.
        Some(HealthState::Recovering | HealthState::Unknown) | None => {
            taints.iter().any(|taint| member.node.owns(taint))
        }
    };
    // A taint of another writer with the same key and effect stays that writer's.
    let is_set = taints.iter().any(|taint| taint.same(&wanted) && !member.node.owns(taint));
    (applies && !is_set).then_some(wanted)
}

/// Whether the node has this taint from this operator, and no other.
fn has_only(node: &NodeFacts, taint: Option<&TaintFact>) -> bool {
    node.own_taint.as_ref() == taint && node.taints.iter().filter(|present| node.owns(present)).eq(taint)
}

/// Cordons a node that others have not cordoned, or undoes a cordon that this operator has recorded.
pub fn cordon(node: &NodeFacts, is_wanted: bool) -> Option<Write> {
    let differs = if is_wanted { !node.cordoned } else { node.own_cordon };
    differs.then(|| Write::new(&node.name, Body::Cordon(is_wanted)))
}
