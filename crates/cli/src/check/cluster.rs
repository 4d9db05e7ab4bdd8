//! The checks of the cluster, and of third-party GPU stacks.

use gpu_operator_plan::world::{ForeignOwner, ForeignPart, ForeignSet};
use kube::ResourceExt;

use crate::{
    check::facts::{Facts, Judged, bad, good, listed, minor, skipped},
    read::ReadError,
};

/// The oldest minor version of Kubernetes, as in the chart.
const OLDEST: u32 = 32;

pub fn kubernetes_version(facts: &Facts) -> Judged<'_> {
    let version = facts.kubernetes.as_ref()?;
    match minor(version) {
        None => skipped(format!("cannot parse version {version:?}")),
        Some(minor) if minor < OLDEST => bad(
            format!("Kubernetes {version} is older than 1.{OLDEST}"),
            format!("upgrade the control plane to Kubernetes 1.{OLDEST} or later"),
        ),
        Some(_) => good(version),
    }
}

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

/// Returns the owner of a DaemonSet, and how to let this operator serve its nodes.
fn remedy(set: &ForeignSet) -> (&'static str, &'static str) {
    match (set.owner, set.part) {
        (ForeignOwner::NvidiaOperator, _) => (
            "NVIDIA's GPU Operator",
            "install this chart as a Helm release of its own, such as nodestack; to move nodes to this operator, follow the page Coming from \
             NVIDIA's GPU Operator",
        ),
        (_, ForeignPart::Dra) => (
            "a DRA driver",
            "keep either the DRA driver or the device plugin off each node, with its nodeSelector: they do not coordinate",
        ),
        (ForeignOwner::Gke, ForeignPart::Stage(_)) => (
            "GKE's add-on",
            "create the node pool with gpu-driver-version=disabled and the label gke-no-default-nvidia-gpu-device-plugin=true",
        ),
        (ForeignOwner::Other, ForeignPart::Stage(_)) => {
            ("third-party", "delete third-party DaemonSets, or exclude the nodes with their nodeSelector")
        }
    }
}

pub fn third_party_stack(facts: &Facts) -> Judged<'_> {
    let nodes = facts.nodes.as_ref()?;
    let (mut found, mut fixes) = (Vec::new(), Vec::new());
    for set in facts.daemon_sets.as_ref()? {
        let namespace = set.namespace().unwrap_or_default();
        let Some(foreign) = ForeignSet::of(set) else { continue };
        let is_own = foreign.is_labelled && namespace == facts.namespace;
        // NVIDIA's operator labels nodes only once it runs.
        let counts = foreign.owner == ForeignOwner::NvidiaOperator || nodes.iter().any(|node| foreign.reaches(node));
        if counts && !is_own {
            let (owner, fix) = remedy(&foreign);
            found.push(format!("{namespace}/{} ({owner})", set.name_any()));
            if !fixes.contains(&fix) {
                fixes.push(fix);
            }
        }
    }
    if found.is_empty() {
        return good("none reaches a node");
    }
    bad(format!("DaemonSets whose nodes are left unchanged: {}", listed(&found)), fixes.join("; "))
}
