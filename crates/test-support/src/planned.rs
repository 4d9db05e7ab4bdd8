//! The writes of a plan by what they write.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{ClusterGpuPolicyStatus, GpuNodeStatus, NodeName, PolicyName, keys};
use gpu_operator_plan::{
    Plan,
    output::{
        body::{Body, DaemonSetWrite, Kind, LabelWrite, SpecWrite},
        write::Write,
    },
    world::{OwnConditions, TaintWrite},
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

/// The writes of a plan, by name.
pub trait Planned {
    fn labels(&self) -> BTreeMap<NodeName, &LabelWrite>;
    fn specs(&self) -> BTreeMap<NodeName, &SpecWrite>;
    fn node_statuses(&self) -> BTreeMap<NodeName, &GpuNodeStatus>;
    fn conditions(&self) -> BTreeMap<NodeName, &OwnConditions>;
    fn taints(&self) -> BTreeMap<NodeName, &TaintWrite>;
    fn policy_statuses(&self) -> BTreeMap<PolicyName, &ClusterGpuPolicyStatus>;
    fn daemon_sets(&self) -> BTreeMap<String, &DaemonSetWrite>;
    /// Returns the pods that test nodes.
    fn tests(&self) -> BTreeMap<String, &Pod>;
    /// Returns the pods that pull images.
    fn preflights(&self) -> BTreeMap<String, &Pod>;
    fn deleted(&self, kind: Kind) -> BTreeSet<String>;
}

/// Returns the writes whose bodies match a pattern, by name.
macro_rules! bodies {
    ($plan:expr, $pattern:pat => $content:expr) => {
        $plan
            .writes
            .iter()
            .filter_map(|write| match &write.body {
                $pattern => Some((write.target.name.as_str().into(), $content)),
                _ => None,
            })
            .collect()
    };
}

impl Planned for Plan {
    fn labels(&self) -> BTreeMap<NodeName, &LabelWrite> {
        bodies!(self, Body::Labels(write) => write)
    }

    fn specs(&self) -> BTreeMap<NodeName, &SpecWrite> {
        bodies!(self, Body::Spec(write) => &**write)
    }

    fn node_statuses(&self) -> BTreeMap<NodeName, &GpuNodeStatus> {
        bodies!(self, Body::Status(status) => &**status)
    }

    fn conditions(&self) -> BTreeMap<NodeName, &OwnConditions> {
        bodies!(self, Body::Conditions(conditions) => conditions)
    }

    fn taints(&self) -> BTreeMap<NodeName, &TaintWrite> {
        bodies!(self, Body::Taints(write) => write)
    }

    fn policy_statuses(&self) -> BTreeMap<PolicyName, &ClusterGpuPolicyStatus> {
        bodies!(self, Body::PolicyStatus(status) => &**status)
    }

    fn daemon_sets(&self) -> BTreeMap<String, &DaemonSetWrite> {
        bodies!(self, Body::DaemonSet(write) => &**write)
    }

    fn tests(&self) -> BTreeMap<String, &Pod> {
        pods(self, keys::VALIDATION)
    }

    fn preflights(&self) -> BTreeMap<String, &Pod> {
        pods(self, keys::PREFLIGHT)
    }

    fn deleted(&self, kind: Kind) -> BTreeSet<String> {
        let deletes = |write: &&Write| write.target.kind == kind && matches!(write.body, Body::Delete(_));
        self.writes.iter().filter(deletes).map(|write| write.target.name.clone()).collect()
    }
}

fn pods<'p>(plan: &'p Plan, purpose: &str) -> BTreeMap<String, &'p Pod> {
    let mut pods: BTreeMap<_, &Pod> = bodies!(plan, Body::Pod(pod) => &**pod);
    pods.retain(|_, pod| pod.labels().get(keys::STAGE).is_some_and(|stage| stage == purpose));
    pods
}
