//! The eviction of the pods that use a node's GPUs (`gpuPods.mode: Evict`). As long as a pod remains that must not be evicted, none is.
//!
//! The API server checks the pods' PodDisruptionBudgets. Before the first eviction it is asked about each pod, by a dry run. Its answers are
//! known from earlier attempts, which are repeated with pauses ([`crate::loop_memory`]).

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{
    policy::{Eviction as Consent, RolloutGpuPods},
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::{
    clock::Clock,
    note::{Note, listed},
    time::later,
    world::{GpuPod, PodOwner},
};

/// How long after its grace period a pod may still exist before its finalizers are named.
const LINGERS: Duration = Duration::from_secs(30);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Eviction {
    /// `namespace/name`.
    pub pod: String,
    /// Its successor of the same name is another pod.
    pub uid: String,
    /// Whether the API server is only asked.
    pub is_check: bool,
}

impl Eviction {
    pub fn of(pod: &GpuPod) -> Self {
        Self { pod: pod.name.clone(), uid: pod.uid.clone(), is_check: false }
    }

    pub fn check(pod: &GpuPod) -> Self {
        Self { is_check: true, ..Self::of(pod) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evictions<'p> {
    /// None, as long as one must not be evicted.
    pub pods: Vec<&'p GpuPod>,
    /// What the node waits for.
    pub note: Note,
}

/// Whether a pod has to end before the device plugin is removed. A DaemonSet would create its pod again as long as the plugin offers GPUs.
pub fn ends_first(pod: &GpuPod) -> bool {
    pod.owner != PodOwner::DaemonSet
}

/// For pods whose eviction does not begin, because it might not end before the node is given back.
pub fn too_late(slowest: &GpuPod, ends_at: Timestamp) -> Note {
    let GpuPod { name, grace, .. } = slowest;
    let message = format!(
        "update pending: pod {name} may take {}s to end, and the node would be given back at {ends_at}; to have it evicted, set a longer gpuPods.timeout or window",
        grace.as_secs()
    );
    note(Reason::EvictionBlocked, message, vec![name.clone()])
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate<'p> {
    /// Already deleted.
    Leaving,
    /// Selected by `gpuPods.waitForJobs`.
    Awaited,
    /// Never evicted.
    Kept(Kept),
    Evicted,
    /// Should be evicted, but the API server does not allow it.
    Refused(&'p str),
}

/// Why a pod is never evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    Static,
    Own,
    Bare,
    EmptyDir,
}

impl Kept {
    /// Returns what is wrong with one such pod, or with several, and what to do.
    pub fn message(self, is_one: bool) -> &'static str {
        match (self, is_one) {
            (Self::Static, true) => "is static and cannot be evicted; remove its manifest from the node",
            (Self::Static, false) => "are static and cannot be evicted; remove their manifests from the node",
            (Self::Own, true) => "belongs to the operator, which deletes it itself",
            (Self::Own, false) => "belong to the operator, which deletes them itself",
            (Self::Bare, true) => "has no controller and is not evicted; delete it, or set gpuPods.barePods: Evict",
            (Self::Bare, false) => {
                "have no controller and are not evicted; delete them, or set gpuPods.barePods: Evict"
            }
            (Self::EmptyDir, true) => {
                "has data in an emptyDir volume and is not evicted; delete it, or set gpuPods.emptyDir: Evict"
            }
            (Self::EmptyDir, false) => {
                "have data in emptyDir volumes and are not evicted; delete them, or set gpuPods.emptyDir: Evict"
            }
        }
    }
}

/// `refused` has why pods are not evicted.
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

/// `refused` has why pods are not evicted.
pub fn of<'p>(
    users: &'p [GpuPod],
    settings: &RolloutGpuPods,
    refused: &BTreeMap<String, String>,
    clock: &Clock,
) -> Evictions<'p> {
    let fates: Vec<_> = users.iter().map(|pod| (pod, fate(pod, settings, refused))).collect();
    let of_fate = |is_it: &dyn Fn(Fate<'_>) -> bool| -> Vec<String> {
        fates.iter().filter(|(_, fate)| is_it(*fate)).map(|(pod, _)| pod.name.clone()).collect()
    };
    let why = fates.iter().find_map(|(_, fate)| if let Fate::Kept(why) = fate { Some(*why) } else { None });
    if let Some(why) = why {
        let alike = of_fate(&|fate| fate == Fate::Kept(why));
        let (is_one, pods) = (alike.len() == 1, if alike.len() == 1 { "pod" } else { "pods" });
        let message = format!("update pending: {pods} {} {}", listed(&alike), why.message(is_one));
        let names = of_fate(&|fate| matches!(fate, Fate::Kept(_)));
        return Evictions { pods: Vec::new(), note: note(Reason::GpuPodsInUse, message, names) };
    }
    let jobs = of_fate(&|fate| fate == Fate::Awaited);
    if !jobs.is_empty() {
        let message =
            format!("update pending until the pods selected by gpuPods.waitForJobs have ended: {}", listed(&jobs));
        return Evictions { pods: Vec::new(), note: note(Reason::GpuPodsInUse, message, jobs) };
    }
    let is_evicted: fn(Fate<'_>) -> bool = |fate| matches!(fate, Fate::Evicted | Fate::Refused(_));
    let pods = fates.iter().filter(|(_, fate)| is_evicted(*fate)).map(|(pod, _)| *pod).collect();
    let blocked = of_fate(&|fate| matches!(fate, Fate::Refused(_)));
    let why = fates.iter().find_map(|(_, fate)| if let Fate::Refused(why) = fate { Some(why) } else { None });
    let lingers = |(pod, _): &&(&GpuPod, _)| pod.gone_by.is_some_and(|by| clock.reached(later(by, LINGERS)));
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
        let names = of_fate(&is_evicted).into_iter().chain(of_fate(&|fate| fate == Fate::Leaving)).collect();
        note(Reason::EvictingPods, message, names)
    };
    Evictions { pods, note }
}

fn note(reason: Reason, message: String, waits_on: Vec<String>) -> Note {
    Note { reason, message, waits_on: waits_on.into_iter().take(10).collect() }
}

fn kept(pod: &GpuPod, settings: &RolloutGpuPods) -> Option<Kept> {
    let consents = |consent: Option<Consent>| consent == Some(Consent::Evict);
    match pod.owner {
        PodOwner::Kubelet => Some(Kept::Static),
        PodOwner::Operator => Some(Kept::Own),
        PodOwner::None if !consents(settings.bare_pods) => Some(Kept::Bare),
        _ if pod.has_empty_dir && !consents(settings.empty_dir) => Some(Kept::EmptyDir),
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
