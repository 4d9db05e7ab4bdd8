//! What checks are made from.

use std::collections::BTreeMap;

use gpu_operator_common::version::Version;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use gpu_operator_plan::{catalogue::Catalogue, world::ForeignSet};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{RuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Event, LimitRange, Pod, ResourceQuota},
        node::v1::RuntimeClass,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::LabelSelector,
};
use kube::ResourceExt;

use crate::{
    check::host::Host,
    read::{Listed, ReadError},
};

/// What was read, or why it cannot be read.
pub type Read<T> = Result<T, ReadError>;

/// What checks are made from. What is not read before the installation is empty there.
#[derive(Debug)]
pub struct Facts {
    /// The version of this program.
    pub version: String,
    /// The namespace of the operator.
    pub namespace: String,
    /// The catalogue of models and drivers.
    pub catalogue: Catalogue,
    /// The version of the API server, such as `v1.36.3`.
    pub kubernetes: Read<String>,
    /// Whether the user may create the objects of the chart.
    pub rights: Read<Vec<Right>>,
    pub nodes: Read<Vec<Host>>,
    /// The labels of the operator's namespace; `None` if it does not exist.
    pub labels: Read<Option<BTreeMap<String, String>>>,
    /// The quotas of the operator's namespace.
    pub quotas: Read<Vec<ResourceQuota>>,
    /// The limits of the operator's namespace.
    pub limits: Read<Vec<LimitRange>>,
    /// All admission webhooks.
    pub webhooks: Read<Vec<Webhook>>,
    /// The CRDs of this operator that exist.
    pub crds: Read<Vec<CustomResourceDefinition>>,
    /// Whether the CRD of NVIDIA's GPU Operator exists.
    pub nvidia_crd: Read<bool>,
    /// The Deployments of this operator in all namespaces.
    pub operators: Read<Vec<Deployment>>,
    pub daemon_sets: Read<Vec<DaemonSet>>,
    pub admission: Read<Vec<ValidatingAdmissionPolicy>>,
    pub bindings: Read<Vec<ValidatingAdmissionPolicyBinding>>,
    /// The Pending pods of the operator's namespace.
    pub pending: Read<Vec<Pod>>,
    /// The Events of rejected pods in the operator's namespace.
    pub rejections: Read<Vec<Event>>,
    pub policies: Read<Listed<ClusterGpuPolicy>>,
    pub gpu_nodes: Read<Listed<GpuNode>>,
    pub runtime_classes: Read<Vec<RuntimeClass>>,
}

/// The right of the user to create the objects of a kind.
#[derive(Clone, Debug)]
pub struct Right {
    /// The kind, such as `daemonsets.apps`.
    pub name: String,
    /// Whether the user has it.
    pub is_allowed: bool,
}

/// A webhook of a configuration for validation or mutation.
#[derive(Clone, Debug, Default)]
pub struct Webhook {
    /// The kind and name of the configuration, and the name of the webhook.
    pub name: String,
    /// Whether requests are rejected if it does not answer.
    pub fails_closed: bool,
    /// Whether it has conditions that cannot be judged here.
    pub has_conditions: bool,
    /// The requests that it receives.
    pub rules: Vec<RuleWithOperations>,
    /// The namespaces that it applies to.
    pub namespaces: LabelSelector,
    /// The objects that it applies to.
    pub objects: LabelSelector,
}

impl Facts {
    /// Returns the nodes that are known to have GPUs.
    pub fn gpu_hosts(&self) -> Result<Vec<&Host>, &ReadError> {
        let nodes = self.nodes.as_ref()?;
        Ok(nodes.iter().filter(|node| node.facts.has_linux_host() && node.shows_gpus(&self.catalogue)).collect())
    }

    /// Returns the nodes that have GPUs. If none is known to have any, returns all Linux nodes that are not of the control plane.
    pub fn possible_gpu_hosts(&self) -> Result<Vec<&Host>, &ReadError> {
        const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";
        let known = self.gpu_hosts()?;
        if !known.is_empty() {
            return Ok(known);
        }
        let is_worker = |node: &&Host| node.facts.has_linux_host() && !node.facts.labels.contains_key(CONTROL_PLANE);
        Ok(self.nodes.as_ref()?.iter().filter(is_worker).collect())
    }

    /// Returns the operator's Deployment in its namespace.
    pub fn operator(&self) -> Result<Option<&Deployment>, &ReadError> {
        let is_here = |operator: &&Deployment| operator.metadata.namespace.as_deref() == Some(&self.namespace);
        Ok(self.operators.as_ref()?.iter().find(is_here))
    }

    /// Returns the DaemonSets of the operator's namespace.
    pub fn own_sets(&self) -> Result<Vec<&DaemonSet>, &ReadError> {
        let is_here = |set: &&DaemonSet| set.metadata.namespace.as_deref() == Some(&self.namespace);
        Ok(self.daemon_sets.as_ref()?.iter().filter(is_here).collect())
    }

    /// Returns the DaemonSets of other GPU stacks by namespace and name.
    pub fn foreign_sets(&self) -> Result<Vec<(String, ForeignSet)>, &ReadError> {
        let sets = self.daemon_sets.as_ref()?.iter().filter_map(|set| {
            let namespace = set.namespace().unwrap_or_default();
            let foreign = ForeignSet::of(set)?;
            let is_own = foreign.is_labelled && namespace == self.namespace;
            (!is_own).then(|| (format!("{namespace}/{}", set.name_any()), foreign))
        });
        Ok(sets.collect())
    }

    /// Returns the minor version of Kubernetes 1 in a text such as `v1.36.3`; that of a later major version is the greatest number.
    pub fn minor(version: &str) -> Option<u32> {
        let version = Version::leading(version)?;
        if version.major() > 1 { Some(u32::MAX) } else { version.minor() }
    }
}
