//! The checks of the chart's objects.

use std::collections::BTreeSet;

use gpu_operator_crd::{ClusterGpuPolicy, GROUP, GpuNode, SchemaMismatch, VERSION, crds, keys};
use gpu_operator_plan::{
    assess::pod_failure::{DETECTOR_DAEMON_SET, PROBE_DAEMON_SET},
    world::NodeFacts,
};
use k8s_openapi::{
    api::{
        admissionregistration::v1::ValidatingAdmissionPolicyBinding,
        apps::v1::{DaemonSet, Deployment},
        core::v1::Pod,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{CustomResourceExt, ResourceExt};

use crate::{
    check::facts::{self, Facts, Judged, bad, count, good, listed, messages, skipped},
    read::ReadError,
};

/// The label of the chart's objects with their version.
const VERSION_LABEL: &str = "app.kubernetes.io/version";

pub fn crds_installed(facts: &Facts) -> Judged<'_> {
    let found = facts.crds.as_ref()?;
    let mut faults = Vec::new();
    for name in [ClusterGpuPolicy::crd_name(), GpuNode::crd_name()] {
        match found.iter().find(|crd| crd.name_any() == name) {
            None => faults.push(format!("CRD {name} does not exist")),
            Some(crd) if !crd.spec.versions.iter().any(|version| version.name == VERSION && version.served) => {
                faults.push(format!("CRD {name} does not serve version {VERSION}"));
            }
            Some(crd) if !is_established(crd) => faults.push(format!("CRD {name} is not Established")),
            Some(_) => {}
        }
    }
    if faults.is_empty() {
        return good(format!("{GROUP}/{VERSION}"));
    }
    bad(faults.join("; "), "install the chart with crds.enabled, or kubectl apply --server-side -f config/crd")
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

pub fn crd_schema(facts: &Facts) -> Judged<'_> {
    let found = facts.crds.as_ref()?;
    let mut faults = Vec::new();
    let mut remedy = "update the CRDs with helm upgrade, or kubectl apply --server-side -f config/crd";
    for (_, wanted) in crds() {
        let name = wanted.name_any();
        let Some(crd) = found.iter().find(|crd| crd.name_any() == name) else { continue };
        if let Some(mismatch) = SchemaMismatch::of(&name, crd.annotations()) {
            remedy = mismatch.remedy();
            faults.push(mismatch.to_string());
        }
        let missing = facts::missing_fields(&wanted, crd, VERSION);
        if !missing.is_empty() {
            faults.push(format!("CRD {name} lacks {}", listed(&missing)));
        }
        let stored = crd.status.iter().flat_map(|status| status.stored_versions.iter().flatten());
        let others: Vec<&String> = stored.filter(|version| *version != VERSION).collect();
        if !others.is_empty() {
            faults.push(format!("objects of CRD {name} may be stored as {}", listed(&others)));
        }
    }
    if !faults.is_empty() {
        return bad(faults.join("; "), remedy);
    }
    if found.is_empty() { skipped("no CRD exists") } else { good("as in this version") }
}

pub fn operator_available(facts: &Facts) -> Judged<'_> {
    let Some(operator) = facts.operator()? else {
        return bad(
            format!("namespace {} has no Deployment of the operator", facts.namespace),
            "install the chart, or set --operator-namespace",
        );
    };
    let name = operator.name_any();
    let status = operator.status.clone().unwrap_or_default();
    if status.available_replicas.unwrap_or_default() > 0 {
        return good(format!("Deployment {name} is available"));
    }
    if operator.spec.as_ref().is_some_and(|spec| spec.replicas == Some(0)) {
        let scale = format!("kubectl scale deployment {name} --namespace {} --replicas=1", facts.namespace);
        return bad(format!("Deployment {name} is scaled to 0 replicas"), scale);
    }
    bad(format!("Deployment {name} has no available pod"), see_pods(facts, keys::OPERATOR_NAME))
}

fn operator_release(facts: &Facts) -> Result<Option<&str>, &ReadError> {
    Ok(facts.operator()?.and_then(|operator| operator.labels().get(VERSION_LABEL)).map(String::as_str))
}

pub fn operator_version(facts: &Facts) -> Judged<'_> {
    let Some(version) = operator_release(facts)? else {
        return skipped(format!("no Deployment of the operator with the label {VERSION_LABEL}"));
    };
    if version == facts.version {
        return good(version);
    }
    bad(
        format!("the operator has version {version}, and this program {}", facts.version),
        format!("use version {version} of this program"),
    )
}

pub fn probe_version(facts: &Facts) -> Judged<'_> {
    let Some(version) = operator_release(facts)? else {
        return skipped(format!("no Deployment of the operator with the label {VERSION_LABEL}"));
    };
    let (mut others, mut versions, mut known) = (Vec::new(), BTreeSet::new(), 0);
    for gpu_node in &facts.gpu_nodes.as_ref()?.items {
        let report = gpu_node.status.as_ref().and_then(|status| status.report.as_ref());
        let Some(probe) = report.map(|report| report.probe_version.as_str()).filter(|probe| !probe.is_empty()) else {
            continue;
        };
        known += 1;
        if probe != version {
            others.push(gpu_node.name_any());
            versions.insert(probe);
        }
    }
    if !others.is_empty() {
        let versions: Vec<&str> = versions.into_iter().collect();
        return bad(
            format!("the operator has version {version}, and the probes of {} {}", listed(&others), listed(&versions)),
            format!(
                "wait for the update: kubectl rollout status daemonset/{PROBE_DAEMON_SET} --namespace {}",
                facts.namespace
            ),
        );
    }
    if known == 0 { skipped("no probe has reported") } else { good(version) }
}

fn own_set<'f>(facts: &'f Facts, name: &str) -> Result<Option<&'f DaemonSet>, &'f ReadError> {
    Ok(facts.own_sets()?.into_iter().find(|set| set.name_any() == name))
}

/// Returns how many pods of a DaemonSet are ready, and how many there should be.
fn readiness(set: &DaemonSet) -> (usize, usize) {
    let number = |of: i32| usize::try_from(of).unwrap_or_default();
    let status = set.status.clone().unwrap_or_default();
    (number(status.number_ready), number(status.desired_number_scheduled))
}

/// Returns how many nodes of a kind are not Ready, so that no pod can be ready there. Without the right to read nodes, all are assumed to be.
fn not_ready(facts: &Facts, is_of_kind: impl Fn(&NodeFacts) -> bool) -> usize {
    let nodes = facts.nodes.as_deref().unwrap_or_default();
    nodes.iter().filter(|node| !node.facts.ready && is_of_kind(&node.facts)).count()
}

pub fn detector_ready(facts: &Facts) -> Judged<'_> {
    let Some(set) = own_set(facts, DETECTOR_DAEMON_SET)? else {
        return no_set(facts, DETECTOR_DAEMON_SET);
    };
    let (ready, wanted) = readiness(set);
    if wanted == 0 {
        return bad(
            format!("DaemonSet {DETECTOR_DAEMON_SET} selects no node"),
            "check the chart's values detector.nodeSelector and detector.affinity",
        );
    }
    if ready + not_ready(facts, NodeFacts::has_linux_host) < wanted {
        return bad(pods_not_ready(DETECTOR_DAEMON_SET, ready, wanted), see_pods(facts, keys::DETECTOR_NAME));
    }
    good(format!("ready on {}", count(ready, "node")))
}

pub fn probe_ready(facts: &Facts) -> Judged<'_> {
    let Some(set) = own_set(facts, PROBE_DAEMON_SET)? else {
        return no_set(facts, PROBE_DAEMON_SET);
    };
    let present = facts.nodes.as_ref()?.iter().filter(|node| node.facts.is_labelled_present()).count();
    let (ready, wanted) = readiness(set);
    if wanted < present {
        return bad(
            format!("DaemonSet {PROBE_DAEMON_SET} selects {wanted} of {} with GPUs", count(present, "node")),
            "check the chart's values probe.nodeSelector, probe.affinity and probe.tolerations",
        );
    }
    if ready + not_ready(facts, NodeFacts::is_labelled_present) < wanted {
        return bad(pods_not_ready(PROBE_DAEMON_SET, ready, wanted), see_pods(facts, keys::PROBE_NAME));
    }
    good(if wanted == 0 { "no node has GPUs".to_owned() } else { format!("ready on {}", count(ready, "node")) })
}

fn no_set<'f>(facts: &'f Facts, name: &str) -> Judged<'f> {
    bad(
        format!("namespace {} has no DaemonSet {name}", facts.namespace),
        "run helm upgrade with the chart and the values of this installation",
    )
}

fn pods_not_ready(set: &str, ready: usize, wanted: usize) -> String {
    format!("{ready} of {wanted} pods of DaemonSet {set} are ready")
}

fn see_pods(facts: &Facts, name: &str) -> String {
    format!("kubectl describe pods --namespace {} --selector {}", facts.namespace, keys::selector(name))
}

pub fn pods_admitted(facts: &Facts) -> Judged<'_> {
    let (events, sets) = (facts.rejections.as_ref()?, facts.own_sets()?);
    let lacks_pods = |set: &&DaemonSet| {
        let status = set.status.clone().unwrap_or_default();
        status.current_number_scheduled < status.desired_number_scheduled
    };
    let lacking: BTreeSet<String> = sets.into_iter().filter(lacks_pods).map(ResourceExt::name_any).collect();
    let mut found = BTreeSet::new();
    for event in events {
        let object = &event.involved_object;
        // An Event outlives its cause by an hour.
        let set = object.name.as_ref().filter(|name| lacking.contains(*name));
        if let Some(set) = set.filter(|_| object.kind.as_deref() == Some("DaemonSet")) {
            found.insert(format!("DaemonSet {set}: {}", event.message.clone().unwrap_or_default()));
        }
    }
    if found.is_empty() {
        return good("no DaemonSet lacks rejected pods");
    }
    let found: Vec<String> = found.into_iter().collect();
    bad(messages(&found), "change what the messages name; the operator tries again by itself")
}

pub fn images_pulled(facts: &Facts) -> Judged<'_> {
    let waiting: Vec<String> = facts.pending.as_ref()?.iter().filter_map(image_of).collect();
    if waiting.is_empty() {
        return good("no pod waits for an image");
    }
    bad(messages(&waiting), "check the image's name, the registry, and the pull secrets of chart and policy")
}

/// Returns the pod, the image and kubelet's reason, if the image of a pod cannot be pulled.
fn image_of(pod: &Pod) -> Option<String> {
    const REASONS: [&str; 4] = ["ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull"];
    let status = pod.status.as_ref()?;
    let containers = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    containers.into_iter().find_map(|container| {
        let reason = container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?;
        let is_pull = REASONS.contains(&reason);
        is_pull.then(|| format!("pod {} cannot pull {}: {reason}", pod.name_any(), container.image))
    })
}

/// Returns the names of the chart's admission policies, from the arguments of the operator.
fn admission_names(operator: &Deployment) -> Vec<&str> {
    let spec = operator.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
    let arguments = spec.and_then(|spec| spec.containers.first()?.args.as_deref()).unwrap_or_default();
    let pairs = arguments.windows(2).filter(|pair| pair[0] == "--admission-policy");
    pairs.map(|pair| pair[1].as_str()).collect()
}

pub fn admission_policies(facts: &Facts) -> Judged<'_> {
    let names = facts.operator()?.map(admission_names).unwrap_or_default();
    if names.is_empty() {
        return skipped("no operator that names its admission policies");
    }
    let (policies, bindings) = (facts.admission.as_ref()?, facts.bindings.as_ref()?);
    let denies = |binding: &ValidatingAdmissionPolicyBinding, name: &str| {
        let spec = binding.spec.clone().unwrap_or_default();
        let actions = spec.validation_actions.unwrap_or_default();
        spec.policy_name.as_deref() == Some(name) && actions.iter().any(|action| action == "Deny")
    };
    let mut faults = Vec::new();
    for name in &names {
        if !policies.iter().any(|policy| policy.name_any() == *name) {
            faults.push(format!("ValidatingAdmissionPolicy {name} does not exist"));
        } else if !bindings.iter().any(|binding| denies(binding, name)) {
            faults.push(format!("no ValidatingAdmissionPolicyBinding of {name} denies requests"));
        }
    }
    if faults.is_empty() {
        return good(format!("{} enforced", names.len()));
    }
    bad(faults.join("; "), "run helm upgrade with the chart and the values of this installation")
}
