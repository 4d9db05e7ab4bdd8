//! Taints and the cordon of a node. This operator sets and removes the taint of unhealthy GPUs, and only removes startup taints.

use gpu_operator_crd::{GpuNodeStatus, Reason, health::HealthState, policy::StartupTaint};

use crate::{
    assess::member::Member,
    inventory::records,
    output::{body::Body, write::Write},
    world::{Lift, NodeFacts, OwnTaint, TaintFact, TaintWrite},
};

pub fn is_clean(node: &NodeFacts) -> bool {
    has_only(node, None)
}

pub fn removal(node: &NodeFacts) -> Option<Write> {
    (!is_clean(node))
        .then(|| own(node, None))
        .and_then(|own| write_of(node, TaintWrite { own: Some(own), lifted: None }))
}

pub fn write(member: &Member<'_>, status: &GpuNodeStatus) -> Option<Write> {
    let node = member.node;
    let wanted = wanted(member);
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

fn wanted(member: &Member<'_>) -> Option<TaintFact> {
    let wanted = TaintFact::from(member.health_policy.on_unhealthy.taint()?);
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
