//! The checks of third-party GPU stacks.

use gpu_operator_crd::policy::Stage;
use gpu_operator_plan::world::{ForeignOwner, ForeignPart, ForeignSet};

use crate::{
    check::{
        facts::Facts,
        judgement::{Judged, bad, good, listed},
    },
    read::ReadError,
};

/// Returns the DaemonSets of other GPU stacks that reach a node and meet a condition.
fn reaching(facts: &Facts, is_of_kind: impl Fn(&ForeignSet) -> bool) -> Result<Vec<String>, &ReadError> {
    let nodes = facts.nodes.as_ref()?;
    let sets = facts.foreign_sets()?.into_iter().filter(|(_, set)| is_of_kind(set));
    let reaching = sets.filter(|(_, set)| nodes.iter().any(|node| set.reaches(&node.facts)));
    Ok(reaching.map(|(name, _)| name).collect())
}

/// Checks for NVIDIA's GPU Operator.
pub fn nvidia_operator(facts: &Facts) -> Judged<'_> {
    let sets = facts.foreign_sets()?.into_iter().filter(|(_, set)| set.owner == ForeignOwner::NvidiaOperator);
    let sets: Vec<String> = sets.map(|(name, _)| name).collect();
    if sets.is_empty() {
        let is_left = facts.nvidia_crd.as_ref().is_ok_and(|exists| *exists);
        return good(if is_left { "only its CRD exists" } else { "not found" });
    }
    bad(
        format!("NVIDIA's GPU Operator has the DaemonSets {}; their nodes are left unchanged", listed(&sets)),
        "install this chart as a Helm release of its own, such as nodestack; to move nodes to this operator, follow the page Coming from \
         NVIDIA's GPU Operator",
    )
}

/// Checks for GKE's add-on.
pub fn gke_add_on(facts: &Facts) -> Judged<'_> {
    let sets = reaching(facts, |set| set.owner == ForeignOwner::Gke && set.part != ForeignPart::Dra)?;
    if sets.is_empty() {
        return good("reaches no node");
    }
    bad(
        format!("DaemonSets of GKE serve nodes, which are left unchanged: {}", listed(&sets)),
        "to let this operator serve them, create the node pool with gpu-driver-version=disabled and the label gke-no-default-nvidia-gpu-device-plugin=true",
    )
}

/// Checks for a DRA driver.
pub fn dra_driver(facts: &Facts) -> Judged<'_> {
    let sets = reaching(facts, |set| set.part == ForeignPart::Dra)?;
    if sets.is_empty() {
        return good("reaches no node");
    }
    bad(
        format!("a DRA driver allocates GPUs independently of device plugins: {}", listed(&sets)),
        "keep either the DRA driver or the device plugin off each node, with its nodeSelector",
    )
}

/// Checks for other parts of GPU stacks.
pub fn third_party_stack(facts: &Facts) -> Judged<'_> {
    let is_other = |set: &ForeignSet| {
        let is_stage = matches!(set.part, ForeignPart::Stage(Stage::Driver | Stage::Toolkit | Stage::DevicePlugin));
        set.owner == ForeignOwner::Other && is_stage
    };
    let sets = reaching(facts, is_other)?;
    if sets.is_empty() {
        const NFD: &str = "feature.node.kubernetes.io/";
        let has_nfd = |labels: &gpu_operator_plan::world::NodeLabels| labels.keys().any(|key| key.starts_with(NFD));
        let found = facts.nodes.as_ref()?.iter().any(|node| has_nfd(&node.facts.labels));
        return good(if found { "none; NFD is installed, and its labels are read" } else { "none" });
    }
    bad(
        format!("DaemonSets of others serve nodes, which are left unchanged: {}", listed(&sets)),
        "delete them, or exclude the nodes with their nodeSelector, to let this operator serve the nodes",
    )
}
