//! What is reported of a node in addition to its progress.

use gpu_operator_crd::{Phase, keys, policy::Labels, reason::Reason};

use crate::{
    assess::{Assessment, stage_pod, verdict::Verdict},
    inventory::label_hints,
    note::Note,
    rollout::decision::Decision,
};

/// Returns the verdict merged with further notes, unless the verdict itself is more urgent.
pub fn merge_notes(
    assessment: &Assessment<'_>,
    decision: &Decision,
    conflicts: &[(String, String)],
    published: &Labels,
) -> Verdict {
    let Assessment { member, verdict, notes, .. } = assessment;
    let ready = verdict.phase == Phase::Ready;
    let in_turn = decision.note.as_ref().is_some_and(|note| note.reason == Reason::RuntimeTurnPending);
    let gentle = ready || !verdict.reason.is_failure() && (decision.rollout.is_some() || in_turn);
    let conflict = conflicts.first().map(|(key, value)| {
        let or = if keys::is_discovered(key) { "remove compatibility.labels from" } else { "remove it from nodeLabels of" };
        let message = format!(
            "label {key} already has value {value:?} and is left unchanged; remove the label from the node, or {or} the policy"
        );
        Note::new(Reason::LabelConflict, message)
    });
    let missing =
        stage_pod::gpu_missing(member, Phase::Ready).map(|missing| Note::new(missing.reason, missing.message));
    let of_move = decision.note.iter().filter(|_| gentle);
    // A node may be not ready because of it, which its own reason would not explain.
    let explains = ready || !verdict.reason.is_failure() && !verdict.reason.stops_the_clock();
    let contested = member.contested.filter(|_| explains).map(|message| Note::new(Reason::ManagerConflict, message));
    let of_gpus = member.health.note.iter().chain(&missing).filter(|_| ready);
    let of_labels = conflict.iter().chain(notes).filter(|_| ready);
    let standing: Vec<&Note> = of_move.chain(of_gpus).chain(&contested).chain(of_labels).collect();
    // A label that a user wrote is no problem, and has no reason of its own.
    let known = member.discovery.accelerators.first().map(|accelerator| accelerator.name.as_str());
    let model = member.model().filter(|model| ready && Some(*model) == known);
    let hint = label_hints::mismatch_message(published, &member.node.labels, model);
    let Some(first) = standing.first() else {
        let message = hint.map_or_else(|| verdict.message.clone(), |hint| format!("{}; {hint}", verdict.message));
        return Verdict { phase: verdict.phase, reason: verdict.reason, message, waits_on: verdict.waits_on.clone() };
    };
    // One reason, but all messages.
    let sentences = standing.iter().map(|note| note.message.as_str()).chain(hint.as_deref());
    let message = sentences.collect::<Vec<_>>().join("; ");
    Verdict { reason: first.reason, message, waits_on: first.waits_on.clone(), phase: verdict.phase }
}
