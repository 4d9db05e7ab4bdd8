//! The writes for a node that no policy governs.

use gpu_operator_crd::{GpuNodeSpec, GpuNodeStatus, gpunode::StageRevisions};
use k8s_openapi::jiff::Timestamp;

use kube::ResourceExt;

use super::{
    body::Body, cordon, gpu_node, leavers::Leavers, node_conditions, node_labels, node_taints, plan::Plan,
    presence::Presence, write::Write,
};
use crate::{
    assess::AssessedFleet,
    inventory::{KnownNode, UnmanagedNode, membership::Unmanaged},
    rollout::{Rollout, driver_removal, leaving::Leaving, toolkit_removal::Removals},
    settings::REPORT_GRACE,
    time::later,
};

/// Adds the writes for the nodes that no policy governs, and returns which of them are leaving.
pub fn add(plan: &mut Plan, fleet: &AssessedFleet<'_>, rollout: &Rollout<'_>, now: Timestamp) -> Leavers {
    let world = fleet.world;
    let mut leavers = Leavers::default();
    let mut removals = Removals::of(world, now);
    for unmanaged in &fleet.unmanaged {
        let node = unmanaged.node;
        // A key that another manager keeps setting is removed as well, but must not block the deletion of a policy.
        let is_clean = node.owned_labels.is_empty()
            && node_conditions::is_clean(node)
            && node_taints::is_clean(node)
            && !node.own_cordon;
        let leaving = Leaving::of(world, unmanaged, is_clean, now);
        if leaving == Leaving::Unknown {
            plan.questions.gpu_pods.insert(node.name.clone());
        }
        let presence = Presence::of(unmanaged, is_clean);
        plan.writes.extend(presence.writes);
        if presence.is_deleted {
            continue;
        }
        let awaited_until = report_due(unmanaged).filter(|due| now < *due);
        plan.check(awaited_until);
        let described = unmanaged.gpu_node.filter(|_| awaited_until.is_none());
        let status = described.map(|_| gpu_node::unmanaged_status(world, unmanaged, leaving, now));
        if !is_clean {
            leavers.add(unmanaged, status.as_ref());
        }
        let (keeps, until) = kept(&mut removals, unmanaged, leaving, status.as_ref(), now);
        plan.check(leaving.check_again(now).into_iter().chain(until));
        let labels =
            if leaving.stays() { node_labels::restored(node, &keeps) } else { node_labels::none(node, &keeps) };
        plan.writes.extend(labels.write.map(|write| Write::new(&node.name, Body::Labels(write))));
        if !leaving.stays() {
            plan.writes.extend(node_conditions::removal(node));
            plan.writes.extend(node_taints::removal(node));
        }
        plan.writes.extend(cordon::of(node, false));
        if let Some(status) = status {
            let spec = spec(unmanaged, leaving, is_clean, keeps);
            let turns = rollout.strays.get(&node.name).copied().unwrap_or_default().max(spec.turns);
            let spec = gpu_node::spec_write(unmanaged.gpu_node, node, GpuNodeSpec { turns, ..spec });
            let observed_generation = gpu_node::generation(unmanaged.gpu_node, spec.as_ref());
            let status = GpuNodeStatus { observed_generation, ..status };
            plan.writes.extend(spec.map(|spec| Write::new(&node.name, Body::Spec(Box::new(spec)))));
            plan.writes.extend(gpu_node::status_write(unmanaged.gpu_node, node, &status));
        }
    }
    leavers
}

/// Returns until when the first report of a node is awaited: a status that is written before would be written again.
fn report_due(unmanaged: &UnmanagedNode<'_>) -> Option<Timestamp> {
    let created = unmanaged.gpu_node?.creation_timestamp().filter(|_| unmanaged.why == Unmanaged::Unreported)?;
    Some(later(created.0, REPORT_GRACE))
}

/// Returns the groups that a node keeps for now, and when that changes without an event. While it is being removed from, these are
/// what the removal still needs: a toolkit whose removal is pending, and a driver until no other pod of this operator uses it.
fn kept<'w>(
    removals: &mut Removals<'w>,
    unmanaged: &UnmanagedNode<'w>,
    leaving: Leaving<'_>,
    status: Option<&GpuNodeStatus>,
    now: Timestamp,
) -> (StageRevisions, Option<Timestamp>) {
    let KnownNode { node, report, ref have, ref pods, .. } = **unmanaged;
    if leaving.stays() {
        return (have.clone(), None);
    }
    if leaving == Leaving::Closing {
        return (StageRevisions { mps: None, device_plugin: None, ..have.clone() }, None);
    }
    let since = status.and_then(GpuNodeStatus::since);
    let driver = have.driver.as_ref();
    let driver = since.and_then(|since| driver_removal::kept_by(node, driver, pods, report, since, now));
    let toolkit = removals.kept_by(node, have.toolkit.as_ref());
    let until = driver.iter().chain(&toolkit).map(|(_, until)| *until).min();
    let [driver, toolkit] = [driver, toolkit].map(|kept| kept.map(|(group, _)| group));
    (StageRevisions { driver, toolkit, ..StageRevisions::default() }, until)
}

/// Returns the spec of a GpuNode. It names the policy until its Node has nothing of this operator any more, because that policy's
/// finalizer waits for that.
fn spec(unmanaged: &UnmanagedNode<'_>, leaving: Leaving<'_>, is_clean: bool, keeps: StageRevisions) -> GpuNodeSpec {
    let KnownNode { node, gpu_node, ref pods, .. } = **unmanaged;
    let before = gpu_node.map(|gpu_node| gpu_node.spec.clone()).unwrap_or_default();
    let current = before.policy.is_some().then_some(keeps);
    let before = GpuNodeSpec { current, ..before };
    if is_clean {
        // The number of its updates stays, so that no slot for one of them can be used again.
        let release_driver = driver_removal::needs_release(node, pods);
        GpuNodeSpec { release_driver, turns: before.turns, ..GpuNodeSpec::default() }
    } else if leaving == Leaving::Unknown {
        before
    } else if leaving.stays() {
        // An update that has been interrupted goes on if the node is governed again.
        let release_driver = before.release_driver && before.rollout.is_some();
        GpuNodeSpec { release_driver, report_holders: false, ..before }
    } else {
        let release_driver = leaving == Leaving::Removing && driver_removal::needs_release(node, pods);
        GpuNodeSpec { rollout: None, release_driver, report_holders: false, ..before }
    }
}
