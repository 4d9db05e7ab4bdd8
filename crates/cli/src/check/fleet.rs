//! The checks of policies, GPU nodes and GPUs.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    ClusterGpuPolicy, ConditionType, GpuNode, Reason, keys,
    policy::{Injection, Toolkit},
};
use gpu_operator_plan::desired::effective_spec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use crate::check::facts::{Facts, Judged, bad, count, good, listed, messages, skipped};

/// The name of NVIDIA's runtime, unless a policy sets another one.
const RUNTIME_CLASS: &str = "nvidia";

pub fn nodes_ready(facts: &Facts) -> Judged<'_> {
    let hosts = facts.gpu_hosts()?;
    let down: Vec<&str> = hosts.iter().filter(|host| !host.facts.ready).map(|host| host.name()).collect();
    if !down.is_empty() {
        return bad(
            format!("{} of {} are not Ready: {}", down.len(), count(hosts.len(), "node"), listed(&down)),
            "check kubelet and the container runtime of these nodes: kubectl describe node NODE",
        );
    }
    if hosts.is_empty() { skipped("no node has GPUs") } else { good(format!("{} Ready", count(hosts.len(), "node"))) }
}

pub fn probes_report(facts: &Facts) -> Judged<'_> {
    let (hosts, gpu_nodes) = (facts.gpu_hosts()?, facts.gpu_nodes.as_ref()?);
    let by_name: BTreeMap<String, &GpuNode> =
        gpu_nodes.items.iter().map(|gpu_node| (gpu_node.name_any(), gpu_node)).collect();
    let mut mute: Vec<String> =
        gpu_nodes.unreadable.iter().map(|name| format!("{name} (GpuNode cannot be parsed)")).collect();
    let mut known = 0;
    for host in hosts.iter().filter(|host| host.facts.ready && host.facts.is_labelled_present()) {
        known += 1;
        // That a GpuNode cannot be parsed is listed already.
        if gpu_nodes.unreadable.iter().any(|name| name == host.name()) {
            continue;
        }
        let status = by_name.get(host.name()).and_then(|gpu_node| gpu_node.status.as_ref());
        if status.is_none_or(|status| status.report.is_none() || status.reason() == Some(Reason::ProbeMissing)) {
            mute.push(host.name().to_owned());
        }
    }
    if !mute.is_empty() {
        return bad(
            format!("no recent report of {}", listed(&mute)),
            format!(
                "see the probe's pods: kubectl get pods --namespace {} --selector {} -o wide",
                facts.namespace,
                keys::selector(keys::PROBE_NAME)
            ),
        );
    }
    if known == 0 { skipped("no node has GPUs") } else { good(format!("from {}", count(known, "node"))) }
}

pub fn nodes_without_policy(facts: &Facts) -> Judged<'_> {
    let (hosts, gpu_nodes, policies) = (facts.gpu_hosts()?, facts.gpu_nodes.as_ref()?, facts.policies.as_ref()?);
    let governed: BTreeSet<String> =
        gpu_nodes.items.iter().filter(|gpu_node| gpu_node.spec.policy.is_some()).map(ResourceExt::name_any).collect();
    let unknown: BTreeSet<&str> = gpu_nodes.unreadable.iter().map(String::as_str).collect();
    let opted_out = |labels: &gpu_operator_plan::world::NodeLabels| {
        labels.get(keys::MANAGED).is_some_and(|value| value.as_str() != "true")
    };
    let free: Vec<&str> = hosts
        .iter()
        .filter(|host| {
            !opted_out(&host.facts.labels) && !unknown.contains(host.name()) && !governed.contains(host.name())
        })
        .map(|host| host.name())
        .collect();
    if free.is_empty() {
        return good(if hosts.is_empty() { "no node has GPUs" } else { "none" });
    }
    if policies.items.is_empty() && policies.unreadable.is_empty() {
        return bad(
            format!("no policy exists, so that nothing is installed on {}", count(free.len(), "node")),
            "create a policy, for example examples/kubeadm.yaml",
        );
    }
    bad(
        format!("no policy governs {}", listed(&free)),
        format!("create a policy that selects these nodes, or label them {}=false", keys::MANAGED),
    )
}

fn condition(policy: &ClusterGpuPolicy, kind: ConditionType) -> Option<&Condition> {
    let kind: &str = kind.into();
    policy.status.as_ref()?.conditions.iter().find(|condition| condition.type_ == kind)
}

/// Returns the policies with a condition of this status, with its reason and message.
fn with_condition(policies: &[ClusterGpuPolicy], kind: ConditionType, status: &str) -> Vec<String> {
    let found = policies.iter().filter_map(|policy| {
        let condition = condition(policy, kind).filter(|condition| condition.status == status)?;
        Some(format!("policy {}: {}: {}", policy.name_any(), condition.reason, condition.message))
    });
    found.collect()
}

pub fn policies_accepted(facts: &Facts) -> Judged<'_> {
    let policies = facts.policies.as_ref()?;
    let mut found = with_condition(&policies.items, ConditionType::Accepted, "False");
    found.extend(policies.unreadable.iter().map(|name| format!("policy {name} cannot be parsed by this version")));
    if !found.is_empty() {
        return bad(messages(&found), "correct the settings that the messages name");
    }
    if policies.items.is_empty() { skipped("no policy exists") } else { good("all are valid") }
}

pub fn policies_progress(facts: &Facts) -> Judged<'_> {
    let policies = &facts.policies.as_ref()?.items;
    let found = with_condition(policies, ConditionType::Stalled, "True");
    if !found.is_empty() {
        return bad(messages(&found), "follow the messages; kubectl gpu-fleet explain reason REASON explains a reason");
    }
    if policies.is_empty() { skipped("no policy exists") } else { good("none is stalled") }
}

pub fn policy_overlap(facts: &Facts) -> Judged<'_> {
    let policies = &facts.policies.as_ref()?.items;
    let mut found = BTreeSet::new();
    for policy in policies {
        for overlap in policy.status.iter().flat_map(|status| &status.overlaps) {
            let (name, other) = (policy.name_any(), overlap.policy.to_string());
            let (first, second) = if name < other { (&name, &other) } else { (&other, &name) };
            let nodes = count(usize::try_from(overlap.nodes).unwrap_or(usize::MAX), "node");
            found.insert(format!("{first} and {second} select {nodes}, which {} governs", overlap.governed_by));
        }
    }
    if !found.is_empty() {
        let found: Vec<String> = found.into_iter().collect();
        return bad(messages(&found), "set a nodeSelector, or priority, in the policies");
    }
    if policies.is_empty() { skipped("no policy exists") } else { good("none") }
}

/// The reasons that other checks report.
const OTHERS: [Reason; 4] =
    [Reason::ProbeMissing, Reason::GpuNodeUnreadable, Reason::GpuUnhealthy, Reason::NoDriverImageForOS];

pub fn nodes_progress(facts: &Facts) -> Judged<'_> {
    let gpu_nodes = &facts.gpu_nodes.as_ref()?.items;
    let failed = gpu_nodes.iter().filter_map(|gpu_node| {
        let status = gpu_node.status.as_ref()?;
        let reason = status.reason().filter(|reason| reason.is_failure() && !OTHERS.contains(reason))?;
        Some(format!("{}: {reason}: {}", gpu_node.name_any(), status.message))
    });
    let failed: Vec<String> = failed.collect();
    if !failed.is_empty() {
        return bad(messages(&failed), "follow the messages; kubectl gpu-fleet explain node NODE shows what to do");
    }
    if gpu_nodes.is_empty() { skipped("no GpuNode exists") } else { good("none has failed") }
}

pub fn runtime_classes(facts: &Facts) -> Judged<'_> {
    let policies = &facts.policies.as_ref()?.items;
    let classes = facts.runtime_classes.as_ref()?;
    let mut missing = BTreeSet::new();
    let mut needed = BTreeSet::new();
    for policy in policies {
        let Some(status) = &policy.status else { continue };
        let spec = &policy.spec;
        for pool in status.pools.iter().filter(|pool| pool.nodes.ready > 0) {
            // An implicit pool has the settings of the policy.
            let own = spec.pools.iter().find(|own| own.name == pool.name);
            let Some(class) = class_of(effective_spec::toolkit(policy, own)) else { continue };
            needed.insert(class);
            if !classes.iter().any(|found| found.name_any() == class) {
                missing.insert(format!("RuntimeClass {class} of policy {}", policy.name_any()));
            }
        }
    }
    if !missing.is_empty() {
        let missing: Vec<String> = missing.into_iter().collect();
        return bad(
            format!("missing: {}", listed(&missing)),
            "see the operator's log, which names why it cannot create it",
        );
    }
    if needed.is_empty() {
        skipped("no policy needs one")
    } else {
        good(needed.into_iter().collect::<Vec<_>>().join(", "))
    }
}

/// Returns the RuntimeClass of a pool whose injection is `Runtime`.
fn class_of(toolkit: &Toolkit) -> Option<&str> {
    let class = toolkit.runtime_class.as_deref().unwrap_or(RUNTIME_CLASS);
    (toolkit.injection == Some(Injection::Runtime)).then_some(class)
}

pub fn gpus_healthy(facts: &Facts) -> Judged<'_> {
    let gpu_nodes = &facts.gpu_nodes.as_ref()?.items;
    let mut found = Vec::new();
    let mut reported = 0;
    for gpu_node in gpu_nodes {
        let Some(status) = &gpu_node.status else { continue };
        reported += status.report.as_ref().map_or(0, |report| report.gpus.len());
        let (unhealthy, degraded) = (status.gpus.unhealthy, status.gpus.degraded);
        if unhealthy + degraded > 0 {
            found.push(format!("{}: {unhealthy} unhealthy, {degraded} degraded", gpu_node.name_any()));
        }
    }
    if !found.is_empty() {
        return bad(messages(&found), "see causes and actions with kubectl gpu-fleet explain node NODE");
    }
    if reported == 0 { skipped("no GPU is reported") } else { good(count(reported, "GPU")) }
}
