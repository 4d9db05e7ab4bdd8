//! The checks of the cluster.

use gpu_operator_crd::{GROUP, VERSION, crds};
use gpu_operator_plan::world::TaintFact;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use crate::{
    check::{
        facts::Facts,
        judgement::{Judged, bad, good, listed, skipped},
        schema,
    },
    read::ReadError,
};

/// The oldest minor version of Kubernetes, as in the chart.
const OLDEST: u32 = 34;

/// Checks the version of Kubernetes.
pub fn kubernetes_version(facts: &Facts) -> Judged<'_> {
    let version = facts.kubernetes.as_ref()?;
    match Facts::minor(version) {
        None => skipped(format!("cannot parse version {version:?}")),
        Some(minor) if minor < OLDEST => bad(
            format!("Kubernetes {version} is older than 1.{OLDEST}"),
            format!("upgrade the control plane to Kubernetes 1.{OLDEST} or later"),
        ),
        Some(_) => good(version),
    }
}

/// Checks the rights of the user who installs the chart.
pub fn install_rights(facts: &Facts) -> Judged<'_> {
    let rights = facts.rights.as_ref()?;
    let missing: Vec<&str> = rights.iter().filter(|right| !right.is_allowed).map(|right| right.name.as_str()).collect();
    if missing.is_empty() {
        return good(format!("all kinds of objects ({})", rights.len()));
    }
    bad(
        format!("you may not create {}", missing.join(", ")),
        "install the chart as an administrator of the cluster, or ask one to install it",
    )
}

/// Checks whether admission policies are served.
pub fn admission_policy_api(facts: &Facts) -> Judged<'_> {
    match &facts.admission {
        Err(ReadError::NotInstalled(resource)) => bad(
            format!("the API server does not serve {resource}"),
            "remove the setting of the API server that disables admissionregistration.k8s.io/v1",
        ),
        Err(error) => Err(error),
        Ok(_) => good("served"),
    }
}

/// Checks that there is one installation.
pub fn single_installation(facts: &Facts) -> Judged<'_> {
    let operators = facts.operators.as_ref()?;
    let names = |operator: &k8s_openapi::api::apps::v1::Deployment| {
        format!("{}/{}", operator.namespace().unwrap_or_default(), operator.name_any())
    };
    let names: Vec<String> = operators.iter().map(names).collect();
    let prefix = format!("{}/", facts.namespace);
    match names.as_slice() {
        [] => good("none yet"),
        [name] if name.starts_with(&prefix) => good(name),
        [name] => bad(
            format!("the operator is installed as {name}, outside namespace {}", facts.namespace),
            "set --operator-namespace to its namespace, or uninstall it before installing another one",
        ),
        several => bad(
            format!("{} Deployments are operators: {}", several.len(), listed(several)),
            "uninstall all but one of these releases with helm uninstall",
        ),
    }
}

/// Checks CRDs that are there before the installation.
pub fn leftover_crds(facts: &Facts) -> Judged<'_> {
    let found = facts.crds.as_ref()?;
    if found.is_empty() {
        return good("none");
    }
    let differs = |crd: &CustomResourceDefinition| {
        let wanted = crds().into_iter().map(|(_, wanted)| wanted).find(|wanted| wanted.name_any() == crd.name_any())?;
        let missing = schema::missing(&wanted, crd, VERSION);
        let added = schema::missing(crd, &wanted, VERSION);
        let (first, verb) = match (missing.first(), added.first()) {
            (Some(field), _) => (field.clone(), "lacks"),
            (None, Some(field)) => (field.clone(), "has"),
            (None, None) => return None,
        };
        Some(format!("CRD {} is of another version: it {verb} {first}", crd.name_any()))
    };
    let different: Vec<String> = found.iter().filter_map(differs).collect();
    if different.is_empty() {
        return good("CRDs of this version exist");
    }
    bad(
        different.join("; "),
        format!(
            "install the chart, which updates the CRDs; list what is left with kubectl get clustergpupolicies.{GROUP},gpunodes.{GROUP}"
        ),
    )
}

/// Checks that a node has no taint, on which the operator's pod can run.
pub fn operator_placement(facts: &Facts) -> Judged<'_> {
    let nodes = facts.nodes.as_ref()?;
    let serving: Vec<_> = nodes.iter().filter(|node| node.facts.has_linux_host() && node.facts.serves()).collect();
    if serving.is_empty() {
        return skipped("no node is Ready");
    }
    let is_free = |taints: &[TaintFact]| !taints.iter().any(TaintFact::keeps_pods_away);
    if let Some(node) = serving.iter().find(|node| is_free(&node.facts.taints)) {
        return good(format!("for example {}", node.name()));
    }
    let first = serving.iter().find_map(|node| node.facts.taints.iter().find(|taint| taint.keeps_pods_away()));
    let taint = first.map(ToString::to_string).unwrap_or_default();
    bad(
        format!("all Ready nodes have taints, such as {taint}, that the operator's pod does not tolerate"),
        "set the chart's value operator.tolerations",
    )
}
