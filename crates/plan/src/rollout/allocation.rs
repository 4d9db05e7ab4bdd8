//! At no time are the GPUs of a node offered twice: by a device plugin, and by a DRA driver to resource claims. The pods of both exclude each
//! other by their anti-affinity, but kubelet withdraws the GPUs of a plugin some seconds after its end, and deletes the slices of a DRA driver
//! half a minute after its end. So neither is placed beside what remains of the other.

use gpu_operator_crd::{gpunode::StageRevisions, reason::Reason};

use crate::{assess::member::Member, note::Note, revision, world::DaemonSets};

/// Returns what the device plugin or DRA driver of these revisions has to wait for.
pub fn waits(member: &Member<'_>, revisions: &StageRevisions, sets: &DaemonSets) -> Option<Note> {
    let wanted =
        revisions.device_plugin.as_ref().filter(|wanted| member.have.device_plugin.as_ref() != Some(wanted))?;
    let what = if revision::is_by_claims(sets, wanted) {
        let gpus = member.node.allocatable.total();
        (gpus > 0).then(|| {
            format!("the DRA driver waits until kubelet has withdrawn {gpus} allocatable GPUs of the device plugin")
        })
    } else {
        member.published.has_slices.then(|| {
            "the device plugin waits until kubelet has deleted the ResourceSlices of the DRA driver".to_owned()
        })
    };
    Some(Note::new(Reason::WaitingForAllocatable, what?))
}

/// Returns the revisions without a device plugin or DRA driver that has to wait, and what it waits for.
pub fn hold(member: &Member<'_>, labels: StageRevisions, sets: &DaemonSets) -> (StageRevisions, Option<Note>) {
    match waits(member, &labels, sets) {
        None => (labels, None),
        held => (StageRevisions { mps: None, device_plugin: None, ..labels }, held),
    }
}
