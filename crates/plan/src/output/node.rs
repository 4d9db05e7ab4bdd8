//! The writes for a node that a policy governs.

use std::sync::Arc;

use gpu_operator_crd::{Phase, gpunode::RolloutStep, keys, reason::Reason};
use k8s_openapi::jiff::SignedDuration;

use crate::{
    assess::{
        Assessment,
        verdict::{self, Verdict},
    },
    note::Note,
    output::{
        body::Body,
        events::{Subject, Transition, about, node_transitions},
        gpu_node::{self, Published},
        node_conditions, node_labels,
        node_taints::{self, Drained},
        presence, summaries,
        write::{Plan, Write},
    },
    rollout::{decision::Decision, eviction::Eviction, recreate_pods},
    summary::NodeSummary,
};

/// Returns how the policy counts the node.
pub fn add(
    plan: &mut Plan,
    assessment: &Assessment<'_>,
    decision: &Decision,
    drained: &Drained<'_>,
    deadline: SignedDuration,
) -> Arc<NodeSummary> {
    let member = &assessment.member;
    let (name, clock) = (&member.node.name, &*member.clock);
    let wanted_labels = node_labels::published_labels(member);
    let cuda = assessment.cuda.of(member, &decision.labels);
    let of_label = assessment.cuda.label(member, &decision.labels);
    let known = node_labels::Known {
        model: member.model(),
        cuda: of_label.as_deref(),
        pauses_clients: decision.pauses_clients,
    };
    let labels = node_labels::of(member.node, known, &member.pool.name, &decision.labels, &wanted_labels);
    let verdict = merge_notes(assessment, decision, &labels.conflicts);
    let spec = gpu_node::spec_write(member.gpu_node, member.node, gpu_node::member_spec(member, decision));
    let generation = gpu_node::generation(member.gpu_node, spec.as_ref());
    let health = node_conditions::health_condition(member, clock);
    let published = Published { labels: &labels.published, cuda, generation, health: health.as_ref() };
    let status = gpu_node::member_status(assessment, verdict, published, deadline, clock);
    let awaited = member.is_awaited(clock);
    // A verdict that is neither final nor a failure may change with what no watch reports.
    if !status.is_ready() && status.reason().is_some_and(|reason| !reason.is_failure()) {
        clock.ask_again();
    }
    if !awaited {
        plan.writes.extend(spec.map(|spec| Write::new(name, Body::Spec(Box::new(spec)))));
        let write = gpu_node::status_write(member.gpu_node, member.node, &status);
        plan.writes.extend(write.map(|write| {
            let replaced = member.discovery.replaced.as_deref();
            let replaced = replaced.into_iter().flat_map(|message| about(member, Reason::GpusReplaced, message));
            Write { events: node_transitions(member, &status).into_iter().chain(replaced).collect(), ..write }
        }));
    }
    plan.writes.extend(presence::write(member.node, true));
    plan.writes.extend(node_conditions::write(member, health, &status, clock));
    plan.writes.extend(node_taints::write(member, &status, drained));
    plan.has_waiting_pods |= node_taints::are_awaited(member, &status);
    plan.writes.extend(node_taints::cordon(member.node, decision.cordon));
    plan.writes.extend(decision.evictions.iter().map(|eviction| {
        let Eviction { pod, uid, is_check } = eviction;
        Write::new(pod, if *is_check { Body::EvictionCheck(uid.clone()) } else { Body::Eviction(uid.clone()) })
    }));
    plan.writes.extend(recreate_pods::pods_with_broken_driver_files(assessment, clock).map(Write::delete_pod));
    if let Some(pod) = node_conditions::plugin_to_restart(member, clock) {
        let event = Transition {
            subject: Subject::Node(name.clone(), member.node.uid.clone()),
            reason: Reason::DevicePluginRestarted,
            message: format!("GPUs recovered, but pod {} still withholds them; restarting the pod", pod.name),
        };
        plan.writes.push(Write { events: vec![event], ..Write::delete_pod(pod) });
    }
    // While the report is pending, labels are written only if they include the model.
    let write = labels.write.filter(|_| !awaited || member.model().is_some());
    plan.writes.extend(write.map(|write| Write::new(name, Body::Labels(write))));
    summaries::of(member, status)
}

/// Merges further notes into the verdict, unless the verdict itself is more urgent.
fn merge_notes(assessment: &Assessment<'_>, decision: &Decision, conflicts: &[(String, String)]) -> Verdict {
    let Assessment { member, verdict, notes, .. } = assessment;
    let ready = verdict.phase == Phase::Ready;
    let in_turn = decision.note.as_ref().is_some_and(|note| note.reason == Reason::RuntimeTurnPending);
    // One that only waits for its pods has what it had, and is not ready for a reason of its own.
    let is_updated = decision.rollout.as_ref().is_some_and(|rollout| rollout.step != RolloutStep::Await);
    let gentle = ready || !verdict.reason.is_failure() && (is_updated || in_turn);
    let conflict = conflicts.first().map(|(key, value)| {
        let or = if keys::is_discovered(key) { "remove compatibility.labels from" } else { "remove it from nodeLabels of" };
        let message = format!(
            "label {key} already has value {value:?} and is left unchanged; remove the label from the node, or {or} the policy"
        );
        Note::new(Reason::LabelConflict, message)
    });
    let missing = verdict::gpu_missing(member, Phase::Ready).map(|missing| Note::new(missing.reason, missing.message));
    let of_move = decision.note.iter().filter(|_| gentle);
    // A node may be not ready because of it, which its own reason would not explain.
    let explains = ready || !verdict.reason.is_failure() && !verdict.reason.stops_the_clock();
    let contested = member.contested.filter(|_| explains).map(|message| Note::new(Reason::ManagerConflict, message));
    let of_gpus = member.health.note.iter().chain(&missing).filter(|_| ready);
    let of_labels = conflict.iter().chain(notes).filter(|_| ready);
    let standing: Vec<&Note> = of_move.chain(of_gpus).chain(&contested).chain(of_labels).collect();
    let Some(first) = standing.first() else { return verdict.clone() };
    // One reason, but all messages.
    let message = standing.iter().map(|note| note.message.as_str()).collect::<Vec<_>>().join("; ");
    Verdict { reason: first.reason, message, waits_on: first.waits_on.clone(), phase: verdict.phase }
}
