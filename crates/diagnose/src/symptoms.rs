//! The facts about pods that diagnosis uses in addition to the fleet.

use std::collections::BTreeMap;

use crate::{finding::PodEvent, pending::PendingPod, refused::RefusedPods};

/// The inputs of diagnosis other than the fleet.
#[derive(Clone, Debug, Default)]
pub struct Symptoms {
    /// Pending pods that involve GPUs, by `namespace/name`.
    pub pods: BTreeMap<String, std::sync::Arc<PendingPod>>,
    /// Rejections of pods by the API server, by the Event's `namespace/name`.
    pub refused: BTreeMap<String, std::sync::Arc<RefusedPods>>,
    /// Answers to [`crate::Diagnosis::questions`]: the Events of a pod, by the pod's uid.
    pub pod_events: BTreeMap<String, Vec<PodEvent>>,
}
