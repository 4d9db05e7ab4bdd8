//! The facts that checks judge, and the results.

use std::collections::BTreeMap;

use gpu_operator_common::version::Version;
use gpu_operator_plan::world::NodeFacts;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::{DaemonSet, Deployment},
        coordination::v1::Lease,
        core::v1::{LimitRange, Pod, ResourceQuota},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};

use crate::read::ReadError;

/// What was read, or why it cannot be read.
pub type Read<T> = Result<T, ReadError>;

/// What checks are made from. What is not read before or after the installation is empty there.
#[derive(Debug)]
pub struct Facts {
    /// Whether the chart is not installed yet.
    pub before: bool,
    /// The version of this program.
    pub version: String,
    pub namespace: String,
    /// The version of the API server, such as `v1.36.3`.
    pub kubernetes: Read<String>,
    /// Whether the user may create the objects of the chart.
    pub rights: Read<Vec<Right>>,
    pub nodes: Read<Vec<NodeFacts>>,
    /// The labels of the operator's namespace; `None` if it does not exist.
    pub labels: Read<Option<BTreeMap<String, String>>>,
    pub quotas: Read<Vec<ResourceQuota>>,
    pub limits: Read<Vec<LimitRange>>,
    pub crds: Read<Vec<CustomResourceDefinition>>,
    /// The Deployments of this operator in all namespaces.
    pub operators: Read<Vec<Deployment>>,
    /// The operator's pods.
    pub pods: Read<Vec<Pod>>,
    /// The Leases of the operator.
    pub leases: Read<Vec<Lease>>,
    /// Before the installation those of all namespaces, after it those of the operator's.
    pub daemon_sets: Read<Vec<DaemonSet>>,
    pub admission: Read<Vec<ValidatingAdmissionPolicy>>,
    pub bindings: Read<Vec<ValidatingAdmissionPolicyBinding>>,
}

/// The right of the user to create the objects of a kind.
#[derive(Clone, Debug)]
pub struct Right {
    /// The kind, such as `daemonsets.apps`.
    pub name: String,
    pub is_allowed: bool,
}

impl Facts {
    pub fn operator(&self) -> Result<Option<&Deployment>, &ReadError> {
        let is_here = |operator: &&Deployment| operator.metadata.namespace.as_deref() == Some(&self.namespace);
        Ok(self.operators.as_ref()?.iter().find(is_here))
    }
}

/// Returns the minor version of Kubernetes 1 in a text such as `v1.36.3`. A later major version counts as the greatest number.
pub fn minor(version: &str) -> Option<u32> {
    let version = Version::leading(version)?;
    if version.major() > 1 { Some(u32::MAX) } else { version.minor() }
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

/// Returns a number with its noun: `1 node`, `2 nodes`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
