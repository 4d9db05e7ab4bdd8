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

/// What becomes of a pod that uses the GPUs of a node whose turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<'p> {
    /// It has been deleted already, and its end is awaited.
    Leaving,
    /// The policy selects it to be awaited (`gpuPods.waitForJobs`).
    Awaited,
    /// It is never evicted; for this reason, which includes what to do.
    Kept(&'static str),
    Evicted,
    /// It should be evicted, and the API server does not allow it, for this reason.
    Refused(&'p str),
}

/// Returns what becomes of a pod. `refused` has why pods are not evicted.
pub fn fate<'p>(pod: &GpuPod, settings: &RolloutGpuPods, refused: &'p BTreeMap<String, String>) -> Fate<'p> {
    let jobs = settings.wait_for_jobs.as_ref();
    if pod.gone_by.is_some() {
        Fate::Leaving
    } else if jobs.is_some_and(|jobs| jobs.matches(|key| pod.labels.get(key).map(String::as_str))) {
        Fate::Awaited
    } else if let Some(why) = kept(pod, settings) {
        Fate::Kept(why)
    } else if let Some(why) = refused.get(&pod.name) {
        Fate::Refused(why)
    } else {
        Fate::Evicted
    }
}

/// Returns what to do about some pods of a node. `refused` has why pods are not evicted.
pub fn of(
    users: &[&GpuPod],
    settings: &RolloutGpuPods,
    refused: &BTreeMap<String, String>,
    now: Timestamp,
) -> Evictions {
    let fates: Vec<_> = users.iter().map(|pod| (*pod, fate(pod, settings, refused))).collect();
    let of_fate = |is_it: fn(Fate<'_>) -> bool| -> Vec<String> {
        fates.iter().filter(|(_, fate)| is_it(*fate)).map(|(pod, _)| pod.name.clone()).collect()
    };
    let advice = fates.iter().find_map(|(_, fate)| if let Fate::Kept(advice) = fate { Some(advice) } else { None });
    if let Some(advice) = advice {
        let names = of_fate(|fate| matches!(fate, Fate::Kept(_)));
        let message =
            format!("update pending until pods that are not evicted have ended: {}; {advice}", listed(&names));
        return Evictions { pods: Vec::new(), note: note(Reason::GpuPodsInUse, message, names) };
    }
    let jobs = of_fate(|fate| fate == Fate::Awaited);
    if !jobs.is_empty() {
        let message =
            format!("update pending until the pods selected by gpuPods.waitForJobs have ended: {}", listed(&jobs));
        return Evictions { pods: Vec::new(), note: note(Reason::GpuPodsInUse, message, jobs) };
    }
    let is_evicted: fn(Fate<'_>) -> bool = |fate| matches!(fate, Fate::Evicted | Fate::Refused(_));
    let evicted = fates.iter().filter(|(_, fate)| is_evicted(*fate));
    let pods = evicted.map(|(pod, _)| Eviction { pod: pod.name.clone(), uid: pod.uid.clone() }).collect();
    let blocked = of_fate(|fate| matches!(fate, Fate::Refused(_)));
    let why = fates.iter().find_map(|(_, fate)| if let Fate::Refused(why) = fate { Some(why) } else { None });
    let lingers = |(pod, _): &&(&GpuPod, _)| pod.gone_by.is_some_and(|by| now >= later(by, LINGERS));
    let note = if let Some(why) = why {
        let more = match blocked.len() {
            1 => String::new(),
            pods => format!(" (and {} more pods)", pods - 1),
        };
        let message = format!("update pending: {why}{more}");
        note(Reason::EvictionBlocked, message, blocked)
    } else if let Some((pod, _)) = fates.iter().find(lingers) {
        note(Reason::EvictionBlocked, terminating(pod), vec![pod.name.clone()])
    } else {
        let message = format!("evicting the pods that use the GPUs of this node; not ended yet: {}", fates.len());
        // Those that have not been deleted yet come first.
        let names = of_fate(is_evicted).into_iter().chain(of_fate(|fate| fate == Fate::Leaving)).collect();
        note(Reason::EvictingPods, message, names)
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
