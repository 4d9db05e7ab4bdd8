//! The diagnosis of a pod: what each module finds, in order, and each finding once.

use gpu_operator_plan::world::World;
use k8s_openapi::{
    api::core::v1::{Event, Pod},
    jiff::Timestamp,
};

use crate::{
    cuda,
    finding::{Finding, Mistake, Verdict},
    fleet::Fleet,
    mistakes,
    not_started::NotStarted,
    pending::{PendingPod, State},
    scheduling,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    pub findings: Vec<Finding>,
    /// When the diagnosis is certain, if it is not yet.
    pub check_again: Option<Timestamp>,
}

impl Diagnosis {
    fn add(&mut self, reason: Mistake, message: String) {
        // Spec and Events may show the same mistake.
        if self.findings.iter().all(|finding| finding.reason != reason) {
            self.findings.push(Finding::new(reason, message));
        }
    }

    fn check(&mut self, pod: &PendingPod, events: Option<&[Event]>, world: &World, now: Timestamp) {
        let fleet = Fleet::of(world);
        for (reason, message) in [
            (Mistake::LegacyGpuResource, mistakes::legacy_resource(pod)),
            (Mistake::HostDriverMounted, mistakes::host_driver_mounted(pod)),
            (Mistake::GpuNotRequested, mistakes::gpu_not_requested(pod)),
            (Mistake::CudaTooNew, cuda::find(pod, &fleet)),
            (Mistake::RuntimeClassNotNamed, mistakes::runtime_class_not_named(pod, &fleet)),
        ] {
            if let Some(message) = message {
                self.add(reason, message);
            }
        }
        let verdict = if pod.node.is_some() {
            mistakes::missing_runtime_handler(pod, events)
        } else {
            scheduling::check(&scheduling::place(pod, &fleet), events)
        };
        let due = pod.due(verdict.grace());
        match verdict {
            Verdict::Mistake(..) | Verdict::Unknown { .. } if due > now => self.check_again = Some(due),
            Verdict::Mistake(reason, message) => self.add(reason, message),
            Verdict::NoMistake | Verdict::Unknown { .. } => {}
        }
    }
}

/// Diagnoses a pod. `events` are those about it, or `None` if they could not be read.
pub fn diagnose(pod: &Pod, events: Option<&[Event]>, world: &World, now: Timestamp) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    if let Some(pod) = PendingPod::of(pod).filter(|pod| pod.state != State::Deleting) {
        diagnosis.check(&pod, events, world, now);
    }
    for failure in events.into_iter().flatten().filter_map(NotStarted::of).filter(|failure| failure.stands_at(now)) {
        diagnosis.add(Mistake::CudaTooNew, failure.message());
    }
    diagnosis
}
