//! Whether the Node can run pods, which GPUs it has, and which policy governs it.

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, GpuNodeStatus, Reason, gpunode::GpuCounts, keys, policy::Pool, report::Report,
};
use gpu_operator_plan::{
    catalogue::Catalogue,
    inventory::{node_labels, records},
    world::{NodeFacts, Role},
};
use kube::ResourceExt;

use super::node_facts::{Facts, NodeState, of_pod};
use crate::{output::Tone, report::Line};

pub fn node(facts: &Facts) -> Line {
    let NodeState { facts: node, ready } = match &facts.node {
        Ok(Some(node)) => node,
        Ok(None) => {
            return Line::check("Node", Tone::Bad, "there is no Node of this name; its GpuNode remains for now");
        }
        Err(why) => return Line::check("Node", Tone::Warning, why.clone()),
    };
    let since = ready.as_ref().and_then(|ready| ready.last_transition_time.clone());
    let cordon = if node.own_cordon {
        ", cordoned by the operator for the node's update"
    } else if node.cordoned {
        ", cordoned, and not by the operator: kubectl uncordon"
    } else {
        ""
    };
    if node.deleting {
        return Line::check("Node", Tone::Bad, "is being deleted");
    }
    if !node.ready {
        let why = ready.as_ref().map(|ready| [&ready.reason, &ready.message].into_iter().flatten().cloned().collect());
        let why: Vec<String> = why.unwrap_or_default();
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(": ")) };
        return Line::check("Node", Tone::Bad, format!("NotReady{cordon}{why}")).since(since);
    }
    if node.runtime_is_silent() {
        return Line::check("Node", Tone::Bad, format!("Ready{cordon}, but its container runtime does not answer"));
    }
    let state = if node.cordoned { Tone::Warning } else { Tone::Good };
    let taint =
        node.own_taint.as_ref().map(|taint| format!("the operator has set taint {}:{}", taint.key, taint.effect));
    Line::check("Node", state, format!("Ready{cordon}"))
        .since(since)
        .with(taint.into_iter().map(Line::evidence).collect())
}

pub fn gpus(facts: &Facts, gpu_node: Option<&GpuNode>, catalogue: &Catalogue) -> Line {
    const NAME: &str = "GPUs";
    let Some(gpu_node) = gpu_node else { return undetected(facts) };
    let node = facts.node.as_ref().ok().and_then(Option::as_ref).map(|node| &node.facts);
    let Some(report) = records::last_report(Some(gpu_node)) else {
        let (state, why) = unreported(facts);
        return Line::check(NAME, state, format!("a GPU was detected, but the probe has not reported yet: {why}"));
    };
    let status = gpu_node.status.as_ref();
    let counts = status.map(|status| &status.gpus);
    let model = status.and_then(|status| status.model.as_deref());
    let found = model.map(|model| format!(": {model}{}", source(catalogue, node, report, model))).unwrap_or_default();
    let passed = match report.passed_through {
        0 => String::new(),
        count => format!(", and {count} passed through to virtual machines"),
    };
    let on_bus = format!("{} on the PCI bus{found}{passed}", report.gpus.len());
    if node.is_some_and(|node| records::current_report(node, Some(gpu_node)).is_none()) {
        let (state, why) = unreported(facts);
        return Line::check(
            NAME,
            state,
            format!("{on_bus}; this report is of an earlier boot, and the probe has not reported since: {why}"),
        );
    }
    let missing = counts.map(|counts| missing(counts, report)).unwrap_or_default();
    if missing.is_empty() {
        return Line::check(NAME, Tone::Good, on_bus);
    }
    let missing = missing.into_iter().map(|address| Line::evidence(format!("missing: {address}"))).collect();
    Line::check(NAME, Tone::Bad, on_bus).with(missing)
}

/// Returns the addresses of GPUs that the bus no longer shows.
fn missing<'c>(counts: &'c GpuCounts, report: &Report) -> Vec<&'c str> {
    let is_there = |address: &&String| {
        report.gpus.iter().any(|gpu| gpu.pci_address == **address) || report.passed_through_at.contains(address)
    };
    counts.seen_at.iter().filter(|address| !is_there(address)).map(String::as_str).collect()
}

fn source(catalogue: &Catalogue, node: Option<&NodeFacts>, report: &Report, model: &str) -> String {
    let signals = node.map(|node| node_labels::signals(catalogue, node)).unwrap_or_default();
    let ids: std::collections::BTreeSet<&str> = report.gpus.iter().map(|gpu| gpu.device_id.as_str()).collect();
    let ids = Vec::from_iter(ids).join(", ");
    match (signals.overridden, signals.named) {
        (Some(_), _) => format!(", by label {}", keys::MODEL_OVERRIDE),
        (None, Some(named)) if named.model == model => format!(", by label {}", named.key),
        _ if ids.is_empty() => String::new(),
        _ => format!(", by PCI device id {ids}"),
    }
}

/// Returns why a node has no GpuNode, as far as that is known.
fn undetected(facts: &Facts) -> Line {
    const NAME: &str = "GPUs";
    if let Err(why) = &facts.gpu_node {
        return Line::check(NAME, Tone::Warning, why.clone());
    }
    let node = facts.node.as_ref().ok().and_then(Option::as_ref).map(|node| &node.facts);
    let offered = node.map(|node| node.allocatable.total()).filter(|offered| *offered > 0);
    let offered =
        offered.map(|offered| format!("; the Node offers {offered} by a device plugin of another installation"));
    let offered = offered.unwrap_or_default();
    if node.is_some_and(|node| !node.has_linux_host()) {
        return Line::check(
            NAME,
            Tone::Quiet,
            format!("no Linux host is behind this Node, so it is not managed{offered}"),
        );
    }
    let namespace = &facts.namespace;
    match &facts.pods {
        Err(_) => Line::check(
            NAME,
            Tone::Warning,
            format!("there is no GpuNode; whether the detector runs is not known{offered}"),
        ),
        Ok(pods) => match &pods.detector {
            Some(pod) if pod.phase == "Running" => Line::check(
                NAME,
                Tone::Quiet,
                format!("no NVIDIA GPU was detected on the PCI bus: the detector runs (pod {}){offered}", pod.name),
            ),
            Some(pod) => Line::check(
                NAME,
                Tone::Warning,
                format!(
                    "the detector does not run: pod {} is {}; read kubectl -n {namespace} describe pod{offered}",
                    pod.name, pod.phase
                ),
            ),
            None => Line::check(
                NAME,
                Tone::Warning,
                format!(
                    "the detector does not run on this node, so it is not known whether it has GPUs: check the DaemonSet of the \
                     detector in namespace {namespace}, and the node's taints{offered}"
                ),
            ),
        },
    }
}

/// Returns why the probe has not reported.
fn unreported(facts: &Facts) -> (Tone, String) {
    let Ok(pods) = &facts.pods else { return (Tone::Warning, "the state of its pod is not known".to_owned()) };
    match pods.own.iter().find(|pod| pod.role == Role::Probe) {
        Some(pod) => (Tone::Warning, of_pod(pod).text),
        None => (Tone::Bad, "no pod of the probe runs on the node".to_owned()),
    }
}

pub fn policy(facts: &Facts, gpu_node: &GpuNode) -> Line {
    const NAME: &str = "Policy";
    let status = gpu_node.status.as_ref();
    let policies = facts.policies.as_deref().unwrap_or_default();
    let Some(name) = &gpu_node.spec.policy else {
        let excluded = format!("none: label {} excludes the node from every policy", keys::MANAGED);
        return match status.and_then(GpuNodeStatus::reason) {
            Some(Reason::OptedOut) => Line::check(NAME, Tone::Quiet, excluded),
            Some(Reason::Leaving) => Line::check(NAME, Tone::Warning, "none any more: the node is leaving its policy"),
            _ if facts.policies.is_err() => Line::check(NAME, Tone::Bad, "none governs the node"),
            _ if policies.is_empty() => Line::check(NAME, Tone::Bad, "none: the cluster has no ClusterGpuPolicy"),
            _ => {
                let names: Vec<String> = policies.iter().map(ResourceExt::name_any).collect();
                Line::check(
                    NAME,
                    Tone::Bad,
                    format!("none; the nodeSelector of {} does not select the node", names.join(", ")),
                )
            }
        };
    };
    let pool = gpu_node.spec.pool.as_ref();
    let detail = pool.map_or_else(|| name.to_string(), |pool| format!("{name}, pool {pool}"));
    let Some(policy) = facts.policy_of(gpu_node) else {
        let is_unknown = facts.policies.is_err();
        let state = if is_unknown { Tone::Good } else { Tone::Warning };
        let gone = if is_unknown { "" } else { ", which does not exist any more" };
        return Line::check(NAME, state, format!("{detail}{gone}"));
    };
    let problem = pool.and_then(|pool| problem_of(policy, pool.as_str()));
    let state = if problem.is_some() { Tone::Bad } else { Tone::Good };
    let named = policy.spec.pools.iter().find(|named| Some(&named.name) == pool);
    let settings = named.map(settings);
    Line::check(NAME, state, detail).with(problem.into_iter().chain(settings).map(Line::evidence).collect())
}

/// Returns where the settings of a pool are written: what the pool sets replaces the policy's as a whole.
fn settings(pool: &Pool) -> String {
    let members = [
        ("driver", pool.driver.is_some()),
        ("toolkit", pool.toolkit.is_some()),
        ("devicePlugin", pool.device_plugin.is_some()),
        ("health", pool.health.is_some()),
        ("rollout", pool.rollout.is_some()),
    ];
    let of = |is_own: bool| -> Vec<&str> {
        members.iter().filter(|(_, own)| *own == is_own).map(|(member, _)| *member).collect()
    };
    let named = |members: Vec<&str>| if members.is_empty() { "none".to_owned() } else { members.join(", ") };
    format!("set by the pool: {}; by the policy: {}", named(of(true)), named(of(false)))
}

fn problem_of(policy: &ClusterGpuPolicy, pool: &str) -> Option<String> {
    let pool = policy.status.as_ref()?.pools.iter().find(|status| status.name.as_str() == pool)?;
    Some(format!("{}: {}", pool.reason()?, pool.message))
}
