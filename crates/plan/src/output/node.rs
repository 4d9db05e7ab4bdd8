//! The writes for a node that a policy governs.

use gpu_operator_crd::reason::Reason;
use k8s_openapi::jiff::Timestamp;

use super::merge_notes::merge_notes;
use crate::{
    assess::assessment::Assessment,
    output::{
        events::{Subject, Transition, node_transition},
        gpu_node::{self, GpuNodeWrite, Published},
        node_health, node_labels,
        plan::Plan,
        policy::Counted,
        published_labels,
        status_debounce::Pace,
    },
    rollout::{decision::Decision, recreate_pods},
    settings::ASK_AGAIN,
    time::later,
};

/// Adds the writes for a governed node. Returns how the policy counts the node.
pub fn write<'m>(
    plan: &mut Plan,
    assessment: &'m Assessment<'_>,
    decision: &Decision,
    pace: Pace,
    now: Timestamp,
) -> Counted<'m> {
    let member = &assessment.member;
    let wanted_labels = published_labels::of(member);
    let cuda = assessment.cuda.of(member, &decision.labels);
    let of_label = assessment.cuda.label(member, &decision.labels);
    let known = node_labels::Known { model: member.model(), cuda: of_label.as_deref() };
    let labels = node_labels::of(member.node, known, &member.pool, &decision.labels, &wanted_labels);
    let verdict = merge_notes(assessment, decision, &labels.conflicts, &wanted_labels);
    for again in member.health.check_again.into_iter().chain(assessment.validation.check_again.filter(|at| now < *at)) {
        plan.check_by(again);
    }
    let published = Published { labels: &labels.published, cuda };
    let (status, again) = gpu_node::member_status(assessment, &verdict, published, pace, now);
    if let Some(again) = again {
        plan.check_by(again);
    }
    if let Some(by) = member.driver_waits_until().filter(|by| now < *by) {
        plan.check_by(by);
    }
    for at in member.crashes_count_until().filter(|at| now < *at) {
        plan.check_by(at);
    }
    // Verdicts that depend on the passing of time are checked again.
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
    plan.recreate.extend(recreate_pods::holders_of_a_broken_root(member, now).map(|pod| pod.name.clone()));
    if let Some(pod) = node_health::plugin_to_restart(member, now) {
        plan.events.push(Transition {
            subject: Subject::Node(member.node.name.clone(), member.node.uid.clone()),
            reason: Reason::DevicePluginRestarted,
            message: format!("GPUs recovered, but pod {pod} still withholds them; restarting the pod"),
        });
        plan.recreate.insert(pod);
    }
    // While the report is pending, labels are written only if they include the model.
    if let Some(write) = labels.write.filter(|_| !awaited || member.model().is_some()) {
        plan.labels.insert(member.node.name.clone(), write);
    }
    Counted::of(member, status)
}
