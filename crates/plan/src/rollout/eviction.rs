//! The eviction of the pods that use the GPUs of a node whose turn has come (`gpuPods.mode: Evict`). Nothing is evicted in vain: as long as
//! a pod remains that must not be evicted, none is.
//!
//! The API server decides on each eviction by the pod's PodDisruptionBudgets. Its refusals are known from earlier attempts, which are
//! repeated with pauses ([`crate::carry`]).

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{
    policy::{Eviction as Consent, RolloutGpuPods},
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::{
    note::{Note, listed},
    time::later,
    world::{GpuPod, PodOwner},
};

/// How long after its grace period a pod may still exist before its finalizers are named.
const LINGERS: Duration = Duration::from_secs(30);

/// The eviction of a pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Eviction {
    /// `namespace/name`.
    pub pod: String,
    /// Its UID: its successor of the same name is another pod.
    pub uid: String,
}

/// What is done about the pods that use the GPUs of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions {
    /// The pods to evict.
    pub pods: Vec<Eviction>,
    /// What the node waits for.
    pub note: Note,
}

/// Returns the pods that have to end before the device plugin is removed. Those of DaemonSets would be created again at once as long as
/// the plugin offers GPUs.
pub fn before_release(users: &[GpuPod]) -> impl Iterator<Item = &GpuPod> {
    users.iter().filter(|pod| pod.owner != PodOwner::DaemonSet)
}

/// Returns what to do about some pods of a node. `refused` has why pods are not evicted.
#[must_use]
pub fn of(
    users: &[&GpuPod],
    settings: &RolloutGpuPods,
    refused: &BTreeMap<String, String>,
    now: Timestamp,
) -> Evictions {
    let (leaving, users): (Vec<&GpuPod>, Vec<&GpuPod>) = users.iter().partition(|pod| pod.gone_by.is_some());
    let kept: Vec<_> = users.iter().filter_map(|pod| Some((*pod, kept(pod, settings)?))).collect();
    if let Some((_, advice)) = kept.first() {
        let names: Vec<_> = kept.iter().map(|(pod, _)| pod.name.clone()).collect();
        let message =
            format!("update pending until pods that are not evicted have ended: {}; {advice}", listed(&names));
        return Evictions { pods: Vec::new(), note: note(Reason::GpuPodsInUse, message, names) };
    }
    let is_awaited = |pod: &&&GpuPod| {
        let awaited = settings.wait_for_jobs.as_ref();
        awaited.is_some_and(|jobs| jobs.matches(|key| pod.labels.get(key).map(String::as_str)))
    };
    let jobs: Vec<_> = users.iter().filter(is_awaited).map(|pod| pod.name.clone()).collect();
    if !jobs.is_empty() {
        let message =
            format!("update pending until the pods selected by gpuPods.waitForJobs have ended: {}", listed(&jobs));
        return Evictions { pods: Vec::new(), note: note(Reason::GpuPodsInUse, message, jobs) };
    }
    let pods = users.iter().map(|pod| Eviction { pod: pod.name.clone(), uid: pod.uid.clone() }).collect();
    let is_refused = |pod: &&&GpuPod| refused.contains_key(&pod.name);
    let blocked: Vec<_> = users.iter().filter(is_refused).map(|pod| pod.name.clone()).collect();
    let names = || users.iter().chain(&leaving).map(|pod| pod.name.clone()).collect();
    let lingers = |pod: &&&GpuPod| pod.gone_by.is_some_and(|by| now >= later(by, LINGERS));
    let note = if let Some(why) = blocked.first().and_then(|pod| refused.get(pod)) {
        let more = match blocked.len() {
            1 => String::new(),
            pods => format!(" (and {} more pods)", pods - 1),
        };
        let message = format!("update pending: {why}{more}");
        note(Reason::EvictionBlocked, message, blocked)
    } else if let Some(pod) = leaving.iter().find(lingers) {
        note(Reason::EvictionBlocked, terminating(pod), vec![pod.name.clone()])
    } else {
        let left = users.len() + leaving.len();
        note(
            Reason::EvictingPods,
            format!("evicting the pods that use the GPUs of this node; not ended yet: {left}"),
            names(),
        )
    };
    Evictions { pods, note }
}

fn note(reason: Reason, message: String, waits_on: Vec<String>) -> Note {
    Note { reason, message, waits_on: waits_on.into_iter().take(10).collect() }
}

/// Returns what to do about a pod that is not evicted, as a message.
fn kept(pod: &GpuPod, settings: &RolloutGpuPods) -> Option<&'static str> {
    let consents = |consent: Option<Consent>| consent == Some(Consent::Evict);
    match pod.owner {
        PodOwner::Kubelet => Some("static pods cannot be evicted: remove their manifests from the node"),
        PodOwner::Operator => Some("the operator deletes its own pods itself"),
        PodOwner::None if !consents(settings.bare_pods) => {
            Some("no controller would create them again: delete them, or write gpuPods.barePods: Evict")
        }
        _ if pod.has_empty_dir && !consents(settings.empty_dir) => {
            Some("the data of their emptyDir volumes would be deleted: delete them, or write gpuPods.emptyDir: Evict")
        }
        _ => None,
    }
}

fn terminating(pod: &GpuPod) -> String {
    let GpuPod { name, finalizers, .. } = pod;
    let why = if finalizers.is_empty() {
        "kubelet has not ended it".to_owned()
    } else {
        format!("it has finalizers: {}", listed(finalizers))
    };
    format!("pod {name} has been deleted and still exists after its grace period; {why}")
}
