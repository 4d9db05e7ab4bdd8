//! The checks of the cluster, of its nodes, and of third-party GPU stacks.

use gpu_operator_crd::{GROUP, Reason, VERSION, crds, policy::Stage};
use gpu_operator_plan::{
    catalogue::{Accelerator, Catalogue},
    desired::container_runtime::Runtime,
    inventory::gpus,
    world::{ForeignOwner, ForeignPart, ForeignSet, TaintFact},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::ResourceExt;

use crate::{
    check::facts::{self, Facts, Host, Judged, bad, count, good, listed, skipped},
    read::ReadError,
};

/// The oldest minor version of Kubernetes, as in the chart.
const OLDEST: u32 = 32;

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

pub fn leftover_crds(facts: &Facts) -> Judged<'_> {
    let found = facts.crds.as_ref()?;
    if found.is_empty() {
        return good("none");
    }
    let differs = |crd: &CustomResourceDefinition| {
        let wanted = crds().into_iter().map(|(_, wanted)| wanted).find(|wanted| wanted.name_any() == crd.name_any())?;
        let missing = facts::missing_fields(&wanted, crd, VERSION);
        let added = facts::missing_fields(crd, &wanted, VERSION);
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

/// How many minor versions a kubelet may be older than the API server.
const MAX_SKEW: u32 = 3;

pub fn kubelet_skew(facts: &Facts) -> Judged<'_> {
    let version = facts.kubernetes.as_ref()?;
    let Some(minor) = Facts::minor(version) else { return skipped(format!("cannot parse version {version:?}")) };
    let nodes = facts.nodes.as_ref()?;
    let is_beyond = |node: &&Host| {
        let kubelet = Facts::minor(node.facts.kubelet.as_str());
        kubelet.is_some_and(|kubelet| kubelet > minor || minor - kubelet > MAX_SKEW)
    };
    let beyond: Vec<String> = nodes
        .iter()
        .filter(is_beyond)
        .map(|node| format!("{} ({})", node.name(), node.facts.kubelet.as_str()))
        .collect();
    if beyond.is_empty() {
        return good(count(nodes.len(), "node"));
    }
    bad(
        format!("Kubernetes {version} does not support the kubelet of {}", listed(&beyond)),
        "upgrade these kubelets, or the control plane if it is the older one",
    )
}

fn runtimes(facts: &Facts) -> Result<Vec<(&Host, Runtime)>, &ReadError> {
    let hosts = facts.possible_gpu_hosts()?.into_iter();
    let known = hosts.filter(|host| !host.facts.runtime_is_silent() && !host.facts.runtime.as_str().is_empty());
    Ok(known.map(|host| (host, Runtime::of(host.facts.runtime.as_str()))).collect())
}

pub fn container_runtime(facts: &Facts) -> Judged<'_> {
    let runtimes = runtimes(facts)?;
    if runtimes.is_empty() {
        return skipped("no node that could have GPUs");
    }
    let unknown = runtimes.iter().filter(|(_, runtime)| runtime.kind.is_none());
    let unknown: Vec<String> = unknown.map(|(host, runtime)| format!("{} ({runtime})", host.name())).collect();
    if unknown.is_empty() {
        return good(format!("supported on {}", count(runtimes.len(), "node")));
    }
    bad(
        format!("the container runtime is none of containerd, CRI-O and Docker on {}", listed(&unknown)),
        "use one of these runtimes, or label the nodes gpu.nodestack.dev/managed=false",
    )
}

pub fn runtime_cdi(facts: &Facts) -> Judged<'_> {
    let mut runtimes = runtimes(facts)?;
    runtimes.retain(|(_, runtime)| runtime.kind.is_some());
    if runtimes.is_empty() {
        return skipped("no node with a known container runtime");
    }
    let without = runtimes.iter().filter(|(_, runtime)| !runtime.has_cdi());
    let without: Vec<String> = without.map(|(host, runtime)| format!("{} ({runtime})", host.name())).collect();
    if !without.is_empty() {
        return bad(
            format!(
                "no CDI on {}: NVIDIA's runtime becomes the default there, and the runtime is restarted once",
                listed(&without)
            ),
            "upgrade to containerd 2, or plan for the restart",
        );
    }
    match runtimes.iter().filter(|(_, runtime)| !runtime.takes_cdi()).count() {
        0 => good(format!("on {}", count(runtimes.len(), "node"))),
        disabled => good(format!("after a restart of containerd on {}", count(disabled, "node"))),
    }
}

pub fn driver_image(facts: &Facts) -> Judged<'_> {
    let hosts = facts.gpu_hosts()?;
    let gpu_nodes = &facts.gpu_nodes.as_ref()?.items;
    let mut without = Vec::new();
    let mut known = 0;
    for host in hosts {
        let gpu_node = gpu_nodes.iter().find(|gpu_node| gpu_node.name_any() == host.name());
        let governed = gpu_node.filter(|gpu_node| gpu_node.spec.policy.is_some());
        if let Some(status) = governed.and_then(|gpu_node| gpu_node.status.as_ref()) {
            known += 1;
            // The policy may use another source, or an image of its own.
            if status.reason() == Some(Reason::NoDriverImageForOS) {
                without.push(format!("{} ({})", host.name(), host.os_image));
            }
        } else if let Some((id, version)) = host.os_release() {
            known += 1;
            if !has_image(&facts.catalogue, host, id, version) {
                without.push(format!("{} ({})", host.name(), host.os_image));
            }
        }
    }
    if !without.is_empty() {
        return bad(
            format!("no driver image for the operating system of {}", listed(&without)),
            "install the driver on the host, or set driver.image or driver.source in the policy",
        );
    }
    if known == 0 { skipped("no node is known to have GPUs") } else { good(format!("for {}", count(known, "node"))) }
}

/// Returns whether there is an image for a system. A model that no driver supports does not count: that is no fact about the system.
fn has_image(catalogue: &Catalogue, host: &Host, id: &str, version: &str) -> bool {
    let found = gpus::discover(catalogue, &host.facts, None);
    let models: Vec<&Accelerator> = found.map(|found| found.accelerators).unwrap_or_default();
    let any = |models: &[&Accelerator]| catalogue.default_driver_for(models, id, version).is_some();
    any(&models) || catalogue.default_driver(&models).is_err()
}

/// Returns the DaemonSets of other GPU stacks that reach a node and meet a condition.
fn reaching(facts: &Facts, is_of_kind: impl Fn(&ForeignSet) -> bool) -> Result<Vec<String>, &ReadError> {
    let nodes = facts.nodes.as_ref()?;
    let sets = facts.foreign_sets()?.into_iter().filter(|(_, set)| is_of_kind(set));
    let reaching = sets.filter(|(_, set)| nodes.iter().any(|node| set.reaches(&node.facts)));
    Ok(reaching.map(|(name, _)| name).collect())
}

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
