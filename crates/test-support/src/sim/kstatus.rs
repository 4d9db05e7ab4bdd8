//! The rules of kstatus, by which Flux, kpt and helm 4 wait for objects: pkg/kstatus in sigs.k8s.io/cli-utils.

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, Phase, Reason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

/// The state of an object according to kstatus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kstatus {
    InProgress,
    Failed,
    Current,
    Terminating,
}

/// Returns the state of an object with these parts of its status.
fn compute(metadata: &ObjectMeta, observed_generation: Option<i64>, conditions: &[Condition]) -> Kstatus {
    if metadata.deletion_timestamp.is_some() {
        return Kstatus::Terminating;
    }
    if observed_generation.is_some() && observed_generation != metadata.generation {
        return Kstatus::InProgress;
    }
    // Of `Reconciling` and `Stalled` the first in the list decides.
    let abnormal = conditions.iter().filter(|condition| condition.status == "True");
    let mut abnormal = abnormal.filter_map(|condition| match condition.type_.as_str() {
        "Reconciling" => Some(Kstatus::InProgress),
        "Stalled" => Some(Kstatus::Failed),
        _ => None,
    });
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready");
    let by_ready = match ready.map(|ready| ready.status.as_str()) {
        Some("False" | "Unknown") => Kstatus::InProgress,
        _ => Kstatus::Current,
    };
    abnormal.next().unwrap_or(by_ready)
}

/// Returns the state of an object, for any order of its conditions.
fn in_any_order(metadata: &ObjectMeta, observed_generation: Option<i64>, conditions: &[Condition]) -> Kstatus {
    let found = compute(metadata, observed_generation, conditions);
    let reversed: Vec<_> = conditions.iter().rev().cloned().collect();
    assert_eq!(found, compute(metadata, observed_generation, &reversed), "depends on the order: {conditions:#?}");
    found
}

/// Returns the state of a policy.
pub fn of_policy(policy: &ClusterGpuPolicy) -> Kstatus {
    let status = policy.status.clone().unwrap_or_default();
    in_any_order(&policy.metadata, status.observed_generation, &status.conditions)
}

/// Returns the state of a GpuNode.
pub fn of_gpu_node(gpu_node: &GpuNode) -> Kstatus {
    let status = gpu_node.status.clone().unwrap_or_default();
    in_any_order(&gpu_node.metadata, status.observed_generation, &status.conditions)
}

/// Checks a policy whose status has just been written: kstatus agrees with the status that `kubectl get` shows.
pub fn check_policy(policy: &ClusterGpuPolicy) {
    let shown = policy.status.as_ref().map(|status| status.summary.status.clone()).unwrap_or_default();
    let expected = match shown.as_str() {
        _ if policy.metadata.deletion_timestamp.is_some() => Kstatus::Terminating,
        // The operator has not seen the latest spec yet.
        _ if policy.status.as_ref().and_then(|status| status.observed_generation) != policy.metadata.generation => {
            Kstatus::InProgress
        }
        "Rejected" | "Stalled" => Kstatus::Failed,
        "NotReady" | "RollingOut" | "Unknown" => Kstatus::InProgress,
        "Degraded" | "Ready" => Kstatus::Current,
        other => panic!("unknown status {other:?}"),
    };
    assert_eq!(of_policy(policy), expected, "{:#?}", policy.status);
}

/// Checks a GpuNode whose status has just been written: kstatus agrees with phase and reason.
pub fn check_gpu_node(gpu_node: &GpuNode) {
    let status = gpu_node.status.clone().unwrap_or_default();
    let expected = match status.phase {
        _ if status.observed_generation != gpu_node.metadata.generation => Kstatus::InProgress,
        // Nothing is requested of a node without a policy.
        Phase::Unmanaged | Phase::Ready => Kstatus::Current,
        _ if status.reason().is_some_and(Reason::is_failure) => Kstatus::Failed,
        _ => Kstatus::InProgress,
    };
    assert_eq!(of_gpu_node(gpu_node), expected, "{status:#?}");
}
