//! The writes for the nodes that no policy governs.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    GpuNodeSpec, GpuNodeStatus, PolicyName,
    gpunode::{self, StageRevisions},
    policy_status::Attention,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::{
    body::Body,
    gpu_node, node_conditions, node_labels, node_taints,
    presence::Presence,
    settled,
    write::{Plan, Write},
};
use crate::{
    assess::AssessedFleet,
    clock::Clock,
    ground::foreign_stacks::ForeignStacks,
    inventory::{KnownNode, UnmanagedNode, membership::Unmanaged},
    rollout::{
        Rollout,
        leaving::{self, Leaving, ToolkitRemovals},
    },
    settings::{PROGRESS_DEADLINE, REPORT_GRACE},
    summary::Settled,
    time::later,
};

/// Returns which nodes are leaving, and the settled ones.
pub fn add(
    plan: &mut Plan,
    fleet: &AssessedFleet<'_>,
    rollout: &Rollout<'_>,
    clock: &Clock,
) -> (Leavers, Vec<Settled>) {
    let (world, mut settled) = (fleet.world, Vec::new());
    let removals = ToolkitRemovals::of(world, clock);
    let stacks = &fleet.ground.third_party;
    let mut nodes = Nodes { plan, stacks, rollout, leavers: Leavers::default(), removals };
    for unmanaged in &fleet.unmanaged {
        let (own, writes) = (Clock::at(clock.now()), nodes.plan.writes.len());
        let is_clean = nodes.add(unmanaged, &own);
        if is_clean && nodes.plan.writes.len() == writes {
            settled.extend(settled::of_unmanaged(unmanaged, &world.daemon_sets, &own));
        }
        clock.join(own.next());
    }
    (nodes.leavers, settled)
}

struct Nodes<'p, 'w> {
    plan: &'p mut Plan,
    stacks: &'w ForeignStacks<'w>,
    rollout: &'p Rollout<'p>,
    leavers: Leavers,
    removals: ToolkitRemovals<'w>,
}

impl<'w> Nodes<'_, 'w> {
    /// Returns whether nothing of this operator is left on the node.
    fn add(&mut self, unmanaged: &UnmanagedNode<'w>, clock: &Clock) -> bool {
        let Self { plan, stacks, rollout, leavers, removals } = self;
        let node = unmanaged.node;
        // A key that another manager keeps setting is removed as well, but must not block the deletion of a policy.
        let is_clean = node.owned_labels.is_empty()
            && node_conditions::is_clean(node)
            && node_taints::is_clean(node)
            && !node.own_cordon;
        let leaving = Leaving::of(stacks.world, unmanaged, is_clean, clock);
        if leaving == Leaving::Unknown {
            plan.questions.gpu_pods.insert(node.name.clone());
        }
        let presence = Presence::of(unmanaged, is_clean);
        let brings_probe = unmanaged.why == Unmanaged::Unreported && !presence.writes.is_empty();
        plan.writes.extend(presence.writes);
        if presence.is_deleted {
            return is_clean;
        }
        let is_awaited = report_due(unmanaged).is_some_and(|due| !clock.reached(due));
        let described = unmanaged.gpu_node.filter(|_| !is_awaited && !brings_probe);
        let status = described.map(|_| gpu_node::unmanaged_status(stacks, unmanaged, leaving, clock));
        if !is_clean {
            leavers.add(unmanaged, status.as_ref());
        }
        let keeps = kept(removals, unmanaged, leaving, status.as_ref(), clock);
        let labels =
            if leaving.stays() { node_labels::restored(node, &keeps) } else { node_labels::none(node, &keeps) };
        plan.writes.extend(labels.write.map(|write| Write::new(&node.name, Body::Labels(write))));
        if !leaving.stays() {
            plan.writes.extend(node_conditions::removal(node));
            plan.writes.extend(node_taints::removal(node));
        }
        plan.writes.extend(node_taints::cordon(node, false));
        if let Some(status) = status {
            let spec = spec(unmanaged, leaving, is_clean, keeps, clock);
            let updates_begun = rollout.strays.get(&node.name).copied().unwrap_or_default().max(spec.updates_begun);
            let spec = gpu_node::spec_write(unmanaged.gpu_node, node, GpuNodeSpec { updates_begun, ..spec });
            let observed_generation = gpu_node::generation(unmanaged.gpu_node, spec.as_ref());
            let status = GpuNodeStatus { observed_generation, ..status };
            plan.writes.extend(spec.map(|spec| Write::new(&node.name, Body::Spec(Box::new(spec)))));
            plan.writes.extend(gpu_node::status_write(unmanaged.gpu_node, node, &status));
        }
        is_clean
    }
}

/// Until then no status is written: it would be written again.
fn report_due(unmanaged: &UnmanagedNode<'_>) -> Option<Timestamp> {
    let created = unmanaged.gpu_node?.creation_timestamp().filter(|_| unmanaged.why == Unmanaged::Unreported)?;
    let since = unmanaged.probe_expected_since().into_iter().chain([created.0]).max()?;
    Some(later(since, REPORT_GRACE))
}

/// Returns the revisions that a node keeps for now: a toolkit whose removal is pending, and a driver until no other pod
/// of this operator uses it.
fn kept<'w>(
    removals: &mut ToolkitRemovals<'w>,
    unmanaged: &UnmanagedNode<'w>,
    leaving: Leaving<'_>,
    status: Option<&GpuNodeStatus>,
    clock: &Clock,
) -> StageRevisions {
    let KnownNode { node, report, ref have, ref pods, .. } = **unmanaged;
    if leaving.stays() {
        return have.clone();
    }
    if leaving == Leaving::Closing {
        return StageRevisions { mps: None, device_plugin: None, ..have.clone() };
    }
    let since = status.and_then(GpuNodeStatus::since);
    let driver = have.driver.as_ref();
    let driver = since.and_then(|since| leaving::driver_kept_by(node, driver, pods, report, since, clock));
    let toolkit = removals.kept_by(node, have.toolkit.as_ref());
    StageRevisions { driver, toolkit, ..StageRevisions::default() }
}

/// Names the policy until its Node is clean, because the policy's finalizer waits for that.
fn spec(
    unmanaged: &UnmanagedNode<'_>,
    leaving: Leaving<'_>,
    is_clean: bool,
    keeps: StageRevisions,
    clock: &Clock,
) -> GpuNodeSpec {
    let KnownNode { node, gpu_node, ref pods, .. } = **unmanaged;
    let before = gpu_node.map(|gpu_node| gpu_node.spec.clone()).unwrap_or_default();
    let current = before.policy.is_some().then_some(keeps);
    let before = GpuNodeSpec { current, ..before };
    if is_clean {
        // The number of its updates stays, so that no slot for one of them can be used again.
        let release_driver = leaving::needs_release(node, pods);
        GpuNodeSpec { release_driver, updates_begun: before.updates_begun, ..GpuNodeSpec::default() }
    } else if leaving == Leaving::Unknown {
        before
    } else if leaving.stays() {
        // An update that has been interrupted goes on if the node is governed again. At its deadline it ends, so that its slot can be freed.
        let rollout = before.rollout.filter(|rollout| !clock.reached(deadline(rollout)));
        let release_driver = before.release_driver && rollout.is_some();
        GpuNodeSpec { rollout, release_driver, report_holders: false, ..before }
    } else {
        let release_driver = leaving == Leaving::Removing && leaving::needs_release(node, pods);
        GpuNodeSpec { rollout: None, release_driver, report_holders: false, ..before }
    }
}

/// Returns when an update ends. One that awaits nothing has no deadline of its own.
fn deadline(rollout: &gpunode::Rollout) -> Timestamp {
    rollout.deadline.as_ref().map_or_else(|| later(rollout.since.0, PROGRESS_DEADLINE), |deadline| deadline.0)
}

/// The nodes that still have something of this operator.
#[derive(Debug, Default)]
pub struct Leavers {
    /// The state to report, by the policy that the GpuNode names, in the order of the nodes' names.
    of_policies: BTreeMap<PolicyName, Vec<Attention>>,
    /// Whether there are others, whose policy is not recorded.
    pub others: bool,
}

impl Leavers {
    pub fn of(&self, policy: &PolicyName) -> &[Attention] {
        self.of_policies.get(policy).map(Vec::as_slice).unwrap_or_default()
    }

    pub fn add(&mut self, unmanaged: &UnmanagedNode<'_>, status: Option<&GpuNodeStatus>) {
        let spec = unmanaged.gpu_node.map(|gpu_node| &gpu_node.spec);
        let former = spec.and_then(|spec| Some((spec.policy.clone()?, spec.pool.clone()?)));
        let reported = status.and_then(|status| Some((status, status.reason.clone()?)));
        let (Some((policy, pool)), Some((status, reason))) = (former, reported) else {
            self.others = true;
            return;
        };
        let attention = Attention {
            node: unmanaged.node.name.clone(),
            pool,
            reason,
            message: status.message.clone(),
            since: status.since.clone(),
        };
        self.of_policies.entry(policy).or_default().push(attention);
    }
}
