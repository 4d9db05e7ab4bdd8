//! What a plan writes for one node: as a member of its policy, or as one that no policy governs.

use gpu_operator_crd::{GpuNode, GpuNodeSpec, GpuNodeStatus, keys, reason::Reason};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    GpuNodeWrite, Plan, Subject, Transition, cuda, driver,
    gpu_node::{self, Unmanaged},
    judge::Verdict,
    member::Member,
    node_health, node_labels,
    policy::Counted,
    published,
    rollout::Decision,
    tell::{annotate, node_transition},
    toolkit::removal::Removals,
};
use crate::{
    moment::later,
    settings::ASK_AGAIN,
    world::{NodeFacts, PodFacts},
};

/// A node that no policy governs, with the pods of this operator that are left there: nothing stays on it, but for a toolkit
/// whose end waits for its turn, and a driver until nothing else of this operator uses it.
pub fn unmanaged<'w>(
    plan: &mut Plan,
    removals: &mut Removals<'w>,
    (node, pods): (&'w NodeFacts, &[&PodFacts]),
    gpu_node: Option<&GpuNode>,
    why: Unmanaged,
    model: Option<String>,
    now: Timestamp,
) {
    let status = gpu_node.map(|gpu_node| gpu_node::unmanaged_status(gpu_node, node, why, model, now));
    let report = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()?.report.as_ref());
    let since = status.as_ref().and_then(GpuNodeStatus::since);
    let driver = since.and_then(|since| driver::removal::kept_by(node, pods, report, since, now));
    let kept = [(keys::DRIVER, driver), (keys::TOOLKIT, removals.kept_by(node))];
    let kept: Vec<_> = kept.into_iter().filter_map(|(key, kept)| Some((key, kept?))).collect();
    for (_, (_, until)) in &kept {
        plan.check_by(*until);
    }
    if let Some(write) = node_labels::none(node, kept.iter().map(|(key, (group, _))| (*key, *group))).write {
        plan.labels.insert(node.name.clone(), write);
    }
    let health = node_health::none(node);
    if !health.is_empty() {
        plan.node_health.insert(node.name.clone(), health);
    }
    let (Some(gpu_node), Some(status)) = (gpu_node, status) else {
        return;
    };
    let spec = GpuNodeSpec { release_driver: driver::removal::needs_release(node, pods), ..GpuNodeSpec::default() };
    let write = GpuNodeWrite {
        spec: gpu_node::spec_write(Some(gpu_node), node, spec),
        status: gpu_node::status_write(Some(gpu_node), status),
    };
    if !write.is_empty() {
        plan.gpu_nodes.insert(node.name.clone(), write);
    }
}

/// A node that its policy governs; how the policy counts it.
pub fn member<'m>(
    plan: &mut Plan,
    member: &'m Member<'_>,
    verdict: &Verdict,
    decision: &Decision,
    deadline: SignedDuration,
    now: Timestamp,
) -> Counted<'m> {
    let wanted_labels = published::of(member);
    let cuda = cuda::of(member, &decision.labels);
    let of_label = cuda::label(member, &decision.labels);
    let known = node_labels::Known { model: member.model(), cuda: of_label.as_deref() };
    let labels = node_labels::of(member.node, known, &member.pool, &decision.labels, &wanted_labels);
    let verdict = annotate(verdict, decision, (&labels.conflicts, &wanted_labels), member);
    for again in member.health.check_again.into_iter().chain(member.trial.check_again.filter(|at| now < *at)) {
        plan.check_by(again);
    }
    let (status, again) = gpu_node::member_status(member, &verdict, (&labels.published, cuda), deadline, now);
    if let Some(again) = again {
        plan.check_by(again);
    }
    if let Some(by) = member.driver_waits_until().filter(|by| now < *by) {
        plan.check_by(by);
    }
    for at in member.crashes_count_until().filter(|at| now < *at) {
        plan.check_by(at);
    }
    // Judgements that need a moment to be sure of themselves look again after it.
    if !status.is_ready() && status.reason.is_some_and(|reason| !reason.is_failure()) {
        plan.check_by(later(now, ASK_AGAIN));
    }
    let awaited = member.is_awaited(now);
    if awaited {
        plan.check_by(member.report_due().unwrap_or(now));
    }
    let spec = gpu_node::spec_write(member.gpu_node, member.node, gpu_node::member_spec(member, decision));
    let status_write = gpu_node::status_write(member.gpu_node, status.clone());
    let write = GpuNodeWrite { spec, status: status_write };
    if !write.is_empty() && !awaited {
        if write.status.is_some() {
            plan.events.extend(node_transition(member, &status));
        }
        plan.gpu_nodes.insert(member.node.name.clone(), write);
    }
    let health = node_health::of(member, now);
    if !health.is_empty() {
        plan.node_health.insert(member.node.name.clone(), health);
    }
    plan.renew.extend(driver::holders_of_a_broken_root(member, now).map(|pod| pod.name.clone()));
    if let Some(pod) = node_health::plugin_to_restart(member, now) {
        plan.events.push(Transition {
            subject: Subject::Node(member.node.name.clone(), member.node.uid.clone()),
            reason: Reason::DevicePluginRestarted,
            message: format!("GPUs are well again and pod {pod} withholds them, so it is started anew"),
        });
        plan.renew.insert(pod);
    }
    // A label that says nothing of the model yet can wait for the one that does.
    if let Some(write) = labels.write.filter(|_| !awaited || member.model().is_some()) {
        plan.labels.insert(member.node.name.clone(), write);
    }
    Counted::of(member, status)
}
