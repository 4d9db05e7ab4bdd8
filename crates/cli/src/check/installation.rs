//! The checks of the chart's objects.

use gpu_operator_crd::{GROUP, SchemaMismatch, VERSION, keys, schema_revision::crd_names};
use gpu_operator_plan::{
    ground::{DETECTOR_DAEMON_SET, PROBE_DAEMON_SET},
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
use kube::ResourceExt;

use crate::check::facts::{Facts, Judged, bad, count, good, listed, skipped};

/// The label of the chart's objects with their version.
const VERSION_LABEL: &str = "app.kubernetes.io/version";

pub fn single_installation(facts: &Facts) -> Judged<'_> {
    let operators = facts.operators.as_ref()?;
    let names = |operator: &Deployment| format!("{}/{}", operator.namespace().unwrap_or_default(), operator.name_any());
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

pub fn crds(facts: &Facts) -> Judged<'_> {
    let found = facts.crds.as_ref()?;
    if facts.before && found.is_empty() {
        return good("none yet");
    }
    let mut faults = Vec::new();
    let mut remedy = "install the chart with crds.enabled, or kubectl apply --server-side -f config/crd";
    for name in crd_names() {
        let Some(crd) = found.iter().find(|crd| crd.name_any() == name) else {
            if !facts.before {
                faults.push(format!("CRD {name} does not exist"));
            }
            continue;
        };
        if !crd.spec.versions.iter().any(|version| version.name == VERSION && version.served) {
            faults.push(format!("CRD {name} does not serve version {VERSION}"));
        } else if !is_established(crd) {
            faults.push(format!("CRD {name} is not Established"));
        } else if let Some(mismatch) = SchemaMismatch::of(name, crd.annotations())
            // The chart updates older ones.
            && (mismatch.is_newer() || !facts.before)
        {
            remedy = mismatch.remedy();
            faults.push(mismatch.to_string());
        }
    }
    if faults.is_empty() { good(format!("{GROUP}/{VERSION}")) } else { bad(faults.join("; "), remedy) }
}

fn is_established(crd: &CustomResourceDefinition) -> bool {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Established" && condition.status == "True")
}

pub fn operator_ready(facts: &Facts) -> Judged<'_> {
    let Some(operator) = facts.operator()? else {
        return bad(
            format!("namespace {} has no Deployment of the operator", facts.namespace),
            "install the chart, or set --operator-namespace",
        );
    };
    let name = operator.name_any();
    let status = operator.status.clone().unwrap_or_default();
    if operator.spec.as_ref().is_some_and(|spec| spec.replicas == Some(0)) {
        let scale = format!("kubectl scale deployment {name} --namespace {} --replicas=1", facts.namespace);
        return bad(format!("Deployment {name} is scaled to 0 replicas"), scale);
    }
    if status.available_replicas.unwrap_or_default() == 0 {
        return bad(format!("Deployment {name} has no available pod"), see_pods(facts, keys::OPERATOR_NAME));
    }
    let holder = facts.leases.as_ref()?.iter().find_map(|lease| lease.spec.as_ref()?.holder_identity.clone());
    let holder = holder.filter(|holder| !holder.is_empty());
    let is_leader = |pod: &&Pod| Some(pod.name_any()) == holder && is_ready(pod);
    match facts.pods.as_ref()?.iter().find(is_leader) {
        Some(leader) => good(format!("pod {} leads", leader.name_any())),
        None => bad(
            match holder {
                Some(holder) => format!("the Lease is held by {holder}, which is no ready pod of Deployment {name}"),
                None => format!("no pod of Deployment {name} holds its Lease"),
            },
            format!("kubectl logs --namespace {} --selector {}", facts.namespace, keys::selector(keys::OPERATOR_NAME)),
        ),
    }
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().filter_map(|status| status.conditions.as_ref()).flatten();
    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

pub fn operator_version(facts: &Facts) -> Judged<'_> {
    let operator = facts.operator()?;
    let Some(version) = operator.and_then(|operator| operator.labels().get(VERSION_LABEL)) else {
        return skipped(format!("no Deployment of the operator with the label {VERSION_LABEL}"));
    };
    if *version == facts.version {
        return good(version);
    }
    bad(
        format!("the operator has version {version}, and this program {}", facts.version),
        format!("use version {version} of this program"),
    )
}

/// Returns how many pods of a DaemonSet are ready, and how many there should be.
fn readiness(set: &DaemonSet) -> (usize, usize) {
    let number = |of: i32| usize::try_from(of).unwrap_or_default();
    let status = set.status.clone().unwrap_or_default();
    (number(status.number_ready), number(status.desired_number_scheduled))
}

pub fn daemon_sets(facts: &Facts) -> Judged<'_> {
    let sets = facts.daemon_sets.as_ref()?;
    let nodes = facts.nodes.as_ref()?;
    let present = nodes.iter().filter(|node| node.is_labelled_present()).count();
    let (mut found, mut faults) = (Vec::new(), Vec::new());
    for (name, app, part, least) in [
        (DETECTOR_DAEMON_SET, keys::DETECTOR_NAME, "detector", 1),
        (PROBE_DAEMON_SET, keys::PROBE_NAME, "probe", present),
    ] {
        let Some(set) = sets.iter().find(|set| set.name_any() == name) else {
            let fix = "run helm upgrade with the chart and the values of this installation".to_owned();
            faults.push((format!("namespace {} has no DaemonSet {name}", facts.namespace), fix));
            continue;
        };
        let is_of_set = |node: &&NodeFacts| part == "detector" || node.is_labelled_present();
        let down = nodes.iter().filter(is_of_set).filter(|node| !node.ready && node.has_linux_host()).count();
        let (ready, wanted) = readiness(set);
        if wanted < least {
            let fix = format!("check the chart's values nodeSelector, affinity and tolerations of {part}");
            faults.push((format!("DaemonSet {name} selects {}, not {least}", count(wanted, "node")), fix));
        } else if ready + down < wanted {
            faults.push((format!("{ready} of {wanted} pods of DaemonSet {name} are ready"), see_pods(facts, app)));
        } else {
            found.push(format!("{part} on {}", count(ready, "node")));
        }
    }
    let (findings, fixes): (Vec<_>, Vec<_>) = faults.into_iter().unzip();
    match fixes.into_iter().next() {
        None => good(found.join(", ")),
        // A command is a fix of its own.
        Some(fix) => bad(findings.join("; "), fix),
    }
}

fn see_pods(facts: &Facts, name: &str) -> String {
    format!("kubectl describe pods --namespace {} --selector {}", facts.namespace, keys::selector(name))
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
