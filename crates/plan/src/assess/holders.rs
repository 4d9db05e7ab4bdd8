//! Programs that hold a node's GPUs without a pod that requests one: monitoring agents, pods that mount the device files, processes of the
//! host. As long as one has a device file open, the driver cannot be replaced.

use std::time::Duration;

use gpu_operator_crd::{
    keys,
    reason::Reason,
    report::{GpuPods, Holder},
};

use crate::{
    assess::member::Member,
    note::{Note, listed},
    world::{Bystander, PodFacts},
};

/// How long the probe may take to list the programs, and a listed program to end after the device plugin is gone. Then the update begins
/// without a list, or the node gets its GPU stack back.
pub const GRACE: Duration = Duration::from_mins(1);

/// A program that prevents the replacement of the driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Process and, if it belongs to one, pod.
    pub name: String,
    /// Whether its DaemonSet removes it from nodes with the label `gpu.nodestack.dev/clients: paused`.
    pub gives_way: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holders {
    /// The probe has not listed them, or the pods that they belong to are unknown.
    Unknown,
    /// Without this operator's own programs.
    Listed(Vec<Blocker>),
}

impl Holders {
    pub fn of(member: &Member<'_>) -> Self {
        let Some(report) = member.report else { return Self::Unknown };
        if report.driver.loaded.is_none() {
            return Self::Listed(Vec::new());
        }
        // A list that is not requested any more may be out of date.
        let holders = report.driver.holders.as_ref().filter(|_| is_requested(member));
        let (Some(holders), Some(pods)) = (holders, member.gpu_pods) else { return Self::Unknown };
        let blocker = |holder: &Holder| {
            let Holder { process, pid, pod_uid } = holder;
            let is_user = |uid: &String| pods.users.iter().any(|pod| pod.uid == *uid);
            let (name, gives_way) = match (pod_uid, pod_uid.as_ref().and_then(|uid| pods.bystanders.get(uid))) {
                // It ends with its pod, which counts among those that use a GPU.
                (Some(uid), None) if is_user(uid) => return None,
                (_, Some(Bystander::Own)) => return None,
                (_, Some(Bystander::GivesWay(pod))) => (format!("pod {pod} (process {process})"), true),
                (_, Some(Bystander::Stays(pod))) => (format!("pod {pod} (process {process})"), false),
                // The API server does not list static pods with the UID that kubelet gives them.
                (Some(uid), None) => (format!("process {process} of the pod with UID {uid}"), false),
                (None, None) => {
                    let pid = pid.map(|pid| format!(" (PID {pid})")).unwrap_or_default();
                    (format!("process {process}{pid} of the host"), false)
                }
            };
            Some(Blocker { name, gives_way })
        };
        Self::Listed(holders.iter().filter_map(blocker).collect())
    }

    pub fn names(&self) -> Vec<String> {
        match self {
            Self::Unknown => Vec::new(),
            Self::Listed(blockers) => blockers.iter().map(|blocker| blocker.name.clone()).collect(),
        }
    }
}

pub fn is_requested(member: &Member<'_>) -> bool {
    member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.report_holders)
}

pub fn can_be_listed(member: &Member<'_>) -> bool {
    member.report.is_some() && member.probe_pod().is_some_and(PodFacts::running)
}

/// Returns the pods that have GPUs according to the probe, if there are any. An empty list would prove nothing: a pod may have been given a
/// GPU since.
pub fn reported_pods<'w>(member: &Member<'w>) -> Option<&'w GpuPods> {
    let is_current = is_requested(member) && can_be_listed(member);
    member.report?.gpu_pods.as_ref().filter(|pods| is_current && pods.count > 0)
}

/// For a node whose update does not begin, or was given up, because of these programs.
pub fn note<'b>(blockers: impl Iterator<Item = &'b Blocker>) -> Note {
    let names: Vec<_> = blockers.map(|blocker| blocker.name.clone()).collect();
    let message = format!(
        "update pending until these programs close the GPUs of this node: {}; stop them, or let their DaemonSet avoid nodes with label \
         {}: {}",
        listed(&names),
        keys::CLIENTS,
        keys::CLIENTS_PAUSED
    );
    Note { reason: Reason::GpusHeld, message, waits_on: names }
}
