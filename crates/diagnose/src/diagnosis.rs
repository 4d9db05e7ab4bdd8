//! The diagnosis of all pods: what each module finds, in order, and each finding once.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_plan::world::World;
use k8s_openapi::jiff::Timestamp;

use crate::{
    cuda,
    finding::{Finding, Mistake, Verdict},
    fleet::Fleet,
    mistakes,
    pending::{State, Symptoms},
    scheduling,
};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Diagnosis {
    /// All current mistakes, whether or not they have been reported.
    pub findings: Vec<Finding>,
    /// Pods, by `namespace/name`, whose Events must be read before the diagnosis is certain.
    pub questions: BTreeSet<String>,
    pub check_again: Option<Timestamp>,
}

impl Diagnosis {
    fn check_by(&mut self, at: Timestamp) {
        self.check_again = Some(self.check_again.map_or(at, |known| known.min(at)));
    }
}

pub fn diagnose(symptoms: &Symptoms, world: &World, now: Timestamp) -> Diagnosis {
    let mut diagnosis = Diagnosis::default();
    let fleet = Fleet::of(world);
    // The pods of a Job or Deployment have the same placement, so the fleet is searched once for all of them.
    let mut places = BTreeMap::new();
    let mut cudas = BTreeMap::new();
    for (key, pod) in &symptoms.pods {
        if pod.state == State::Deleting {
            continue;
        }
        let cuda = cudas.entry((pod.node.as_deref(), pod.requirements(), &pod.containers));
        let cuda = cuda.or_insert_with(|| cuda::find(pod, &fleet)).clone();
        let mut found = |reason, message| diagnosis.findings.push(pod.finding(reason, message));
        for (reason, message) in [
            mistakes::legacy_resource(pod).map(|message| (Mistake::LegacyGpuResource, message)),
            mistakes::host_driver_mounted(pod).map(|message| (Mistake::HostDriverMounted, message)),
            mistakes::gpu_not_requested(pod).map(|message| (Mistake::GpuNotRequested, message)),
            cuda.map(|message| (Mistake::CudaTooNew, message)),
            mistakes::runtime_class_not_named(pod, &fleet).map(|message| (Mistake::RuntimeClassNotNamed, message)),
        ]
        .into_iter()
        .flatten()
        {
            found(reason, message);
        }
        let pod_events = symptoms.pod_events.get(&pod.uid).map(Vec::as_slice);
        let verdict = if pod.node.is_some() {
            mistakes::missing_runtime_handler(pod, pod_events)
        } else {
            let place = places.entry(pod.requirements()).or_insert_with(|| scheduling::place(pod, &fleet));
            scheduling::check(place, pod_events)
        };
        match verdict {
            Verdict::NoMistake => {}
            // Not before the grace period is over.
            Verdict::Mistake(..) | Verdict::ReadEvents { .. } if pod.due(verdict.grace()) > now => {
                diagnosis.check_by(pod.due(verdict.grace()));
            }
            Verdict::Mistake(reason, message) => diagnosis.findings.push(pod.finding(reason, message)),
            Verdict::ReadEvents { .. } => drop(diagnosis.questions.insert(key.clone())),
        }
    }
    for refused in symptoms.refused.values() {
        match refused.stands_until() {
            until if until > now => {
                diagnosis.check_by(until);
                diagnosis.findings.push(refused.finding());
            }
            _ => {}
        }
    }
    // Several Events may report the same mistake of one owner.
    let mut seen = BTreeSet::new();
    diagnosis.findings.retain(|finding| seen.insert((finding.subject.uid().to_owned(), finding.reason)));
    diagnosis
}
