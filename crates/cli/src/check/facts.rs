//! The facts that checks judge: nodes, without most of what the API server stores about them, and the fields of CRDs; and the
//! results.

use std::{borrow::Cow, collections::BTreeMap};

use gpu_operator_common::version::Version;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use gpu_operator_plan::{
    catalogue::Catalogue,
    inventory::gpus,
    world::{ForeignSet, NodeFacts, TrimmedNode},
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{RuleWithOperations, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Event, LimitRange, Node, Pod, ResourceQuota},
        node::v1::RuntimeClass,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::{
        CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
    },
    apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta},
};
use kube::{Resource, ResourceExt};
use serde::Deserialize;
use serde_json::Value;

use crate::read::{Listed, ReadError};

/// What was read, or why it cannot be read.
pub type Read<T> = Result<T, ReadError>;

/// What checks are made from. What is not read before the installation is empty there.
#[derive(Debug)]
pub struct Facts {
    pub version: String,
    pub namespace: String,
    pub catalogue: Catalogue,
    /// The version of the API server, such as `v1.36.3`.
    pub kubernetes: Read<String>,
    /// Whether the user may create the objects of the chart.
    pub rights: Read<Vec<Right>>,
    pub nodes: Read<Vec<Host>>,
    /// The labels of the operator's namespace; `None` if it does not exist.
    pub labels: Read<Option<BTreeMap<String, String>>>,
    pub quotas: Read<Vec<ResourceQuota>>,
    pub limits: Read<Vec<LimitRange>>,
    pub webhooks: Read<Vec<Webhook>>,
    pub crds: Read<Vec<CustomResourceDefinition>>,
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
    pub rules: Vec<RuleWithOperations>,
    pub namespaces: LabelSelector,
    pub objects: LabelSelector,
}

impl Facts {
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

    pub fn operator(&self) -> Result<Option<&Deployment>, &ReadError> {
        let is_here = |operator: &&Deployment| operator.metadata.namespace.as_deref() == Some(&self.namespace);
        Ok(self.operators.as_ref()?.iter().find(is_here))
    }

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

    /// Returns the minor version of Kubernetes 1 in a text such as `v1.36.3`. A later major version counts as the
    /// greatest number.
    pub fn minor(version: &str) -> Option<u32> {
        let version = Version::leading(version)?;
        if version.major() > 1 { Some(u32::MAX) } else { version.minor() }
    }
}

#[derive(Deserialize, Clone, Debug)]
#[serde(try_from = "Value")]
pub struct Host {
    meta: ObjectMeta,
    pub facts: NodeFacts,
    /// The name of its operating system, such as `Ubuntu 24.04.2 LTS`.
    pub os_image: String,
}

impl TryFrom<Value> for Host {
    type Error = serde_json::Error;

    fn try_from(node: Value) -> Result<Self, serde_json::Error> {
        let os_image = node["status"]["nodeInfo"]["osImage"].as_str().unwrap_or_default().to_owned();
        let node: TrimmedNode = serde_json::from_value(node)?;
        let meta = ObjectMeta { name: Some(node.name_any()), ..ObjectMeta::default() };
        Ok(Self { meta, facts: NodeFacts::of(&node), os_image })
    }
}

impl Resource for Host {
    type DynamicType = ();
    type Scope = <Node as Resource>::Scope;

    fn kind((): &()) -> Cow<'_, str> {
        Node::kind(&())
    }

    fn group((): &()) -> Cow<'_, str> {
        Node::group(&())
    }

    fn version((): &()) -> Cow<'_, str> {
        Node::version(&())
    }

    fn plural((): &()) -> Cow<'_, str> {
        Node::plural(&())
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}

impl Host {
    pub fn name(&self) -> &str {
        self.facts.name.as_str()
    }

    /// Returns whether labels or allocatable resources show that it has NVIDIA GPUs.
    pub fn shows_gpus(&self, catalogue: &Catalogue) -> bool {
        let facts = &self.facts;
        facts.is_labelled_present()
            || facts.allocatable.first_gpu().is_some()
            || gpus::discover(catalogue, facts, None).is_some()
    }

    /// Returns `ID` and `VERSION_ID` of the operating system, if its name is one of those that are known to have, or not to have, images
    /// of drivers.
    pub fn os_release(&self) -> Option<(&'static str, &str)> {
        const SYSTEMS: [(&str, &str); 5] = [
            ("Ubuntu ", "ubuntu"),
            ("Red Hat Enterprise Linux ", "rhel"),
            ("Rocky Linux ", "rocky"),
            ("Debian GNU/Linux ", "debian"),
            ("AlmaLinux ", "almalinux"),
        ];
        let (rest, id) = SYSTEMS.iter().find_map(|(name, id)| Some((self.os_image.strip_prefix(name)?, *id)))?;
        let version = rest.split_whitespace().next().filter(|word| word.starts_with(|c: char| c.is_ascii_digit()))?;
        // The third number of Ubuntu's versions is no part of VERSION_ID.
        let end = version.match_indices('.').nth(1).map_or(version.len(), |(index, _)| index);
        Some((id, &version[..end]))
    }
}

/// Returns the paths of the fields of `wanted` that `actual` lacks, without the fields below them.
pub fn missing_fields(
    wanted: &CustomResourceDefinition,
    actual: &CustomResourceDefinition,
    version: &str,
) -> Vec<String> {
    let mut paths = Vec::new();
    match (schema(wanted, version), schema(actual, version)) {
        (Some(wanted), Some(actual)) => compare_fields(wanted, actual, "", &mut paths),
        (Some(_), None) => paths.push(format!("version {version}")),
        (None, _) => {}
    }
    paths
}

fn schema<'c>(crd: &'c CustomResourceDefinition, version: &str) -> Option<&'c JSONSchemaProps> {
    let found = crd.spec.versions.iter().find(|found| found.name == version)?;
    found.schema.as_ref()?.open_api_v3_schema.as_ref()
}

fn compare_fields(wanted: &JSONSchemaProps, actual: &JSONSchemaProps, path: &str, paths: &mut Vec<String>) {
    if actual.x_kubernetes_preserve_unknown_fields == Some(true) {
        return;
    }
    for (name, wanted) in wanted.properties.iter().flatten() {
        let path = format!("{path}.{name}");
        match actual.properties.iter().flatten().find(|(found, _)| *found == name) {
            Some((_, actual)) => compare_fields(wanted, actual, &path, paths),
            // apiVersion, kind and metadata need no schema.
            None if path.matches('.').count() == 1 && !["spec", "status"].contains(&name.as_str()) => {}
            None => paths.push(path.trim_start_matches('.').to_owned()),
        }
    }
    if let (Some(JSONSchemaPropsOrArray::Schema(wanted)), Some(JSONSchemaPropsOrArray::Schema(actual))) =
        (&wanted.items, &actual.items)
    {
        compare_fields(wanted, actual, &format!("{path}[]"), paths);
    }
    if let (Some(JSONSchemaPropsOrBool::Schema(wanted)), Some(JSONSchemaPropsOrBool::Schema(actual))) =
        (&wanted.additional_properties, &actual.additional_properties)
    {
        compare_fields(wanted, actual, &format!("{path}.*"), paths);
    }
}

/// The result of a check whose facts are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    Good(String),
    Bad {
        finding: String,
        fix: String,
    },
    /// There is nothing to judge; the reason.
    Skipped(String),
}

/// The result of a check, or why facts that it needs cannot be read.
pub type Judged<'f> = Result<Judgement, &'f ReadError>;

#[expect(clippy::unnecessary_wraps, reason = "the result of a check")]
pub fn good<'f>(finding: impl Into<String>) -> Judged<'f> {
    Ok(Judgement::Good(finding.into()))
}

#[expect(clippy::unnecessary_wraps, reason = "the result of a check")]
pub fn bad<'f>(finding: impl Into<String>, fix: impl Into<String>) -> Judged<'f> {
    Ok(Judgement::Bad { finding: finding.into(), fix: fix.into() })
}

#[expect(clippy::unnecessary_wraps, reason = "the result of a check")]
pub fn skipped<'f>(why: impl Into<String>) -> Judged<'f> {
    Ok(Judgement::Skipped(why.into()))
}

const MAX_NAMES: usize = 5;

/// Returns the first names, and how many more there are.
pub fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns the first messages, and how many more there are.
pub fn messages(found: &[String]) -> String {
    const MAX: usize = 3;
    let shown = found.iter().take(MAX).cloned().collect::<Vec<_>>().join("; ");
    match found.len().saturating_sub(MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Returns a number with its noun: `1 node`, `2 nodes`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_operating_system_is_known_by_its_name() {
        for (name, known) in [
            ("Ubuntu 24.04.2 LTS", Some(("ubuntu", "24.04"))),
            ("Red Hat Enterprise Linux 9.4 (Plow)", Some(("rhel", "9.4"))),
            ("Red Hat Enterprise Linux CoreOS 417.94.202410250757-0", None),
            ("Rocky Linux 9.5 (Blue Onyx)", Some(("rocky", "9.5"))),
            ("Debian GNU/Linux 12 (bookworm)", Some(("debian", "12"))),
            ("Container-Optimized OS from Google", None),
            ("", None),
        ] {
            let node = json!({"metadata": {"name": "a"}, "status": {"nodeInfo": {"osImage": name}}});
            let host = Host::try_from(node).expect("a node");
            assert_eq!(host.os_release(), known, "{name}");
        }
    }
}
