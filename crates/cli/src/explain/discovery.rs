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

use super::node_facts::{Check, Evidence, Facts, NodeState, State};

pub fn node(facts: &Facts) -> Check {
    let NodeState { facts: node, ready } = match &facts.node {
        Ok(Some(node)) => node,
        Ok(None) => {
            return Check::new("Node", State::Failed, "there is no Node of this name; its GpuNode remains for now");
        }
        Err(why) => return Check::new("Node", State::Unknown, why.clone()),
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
        return Check::new("Node", State::Failed, "is being deleted");
    }
    if !node.ready {
        let why = ready.as_ref().map(|ready| [&ready.reason, &ready.message].into_iter().flatten().cloned().collect());
        let why: Vec<String> = why.unwrap_or_default();
        let why = if why.is_empty() { String::new() } else { format!(": {}", why.join(": ")) };
        return Check::new("Node", State::Failed, format!("NotReady{cordon}{why}")).since(since);
    }
    if node.runtime_is_silent() {
        return Check::new("Node", State::Failed, format!("Ready{cordon}, but its container runtime does not answer"));
    }
    let state = if node.cordoned { State::InProgress } else { State::Done };
    let taint =
        node.own_taint.as_ref().map(|taint| format!("the operator has set taint {}:{}", taint.key, taint.effect));
    Check::new("Node", state, format!("Ready{cordon}"))
        .since(since)
        .with(taint.into_iter().map(Evidence::new).collect())
}

pub fn gpus(facts: &Facts, gpu_node: Option<&GpuNode>, catalogue: &Catalogue) -> Check {
    const NAME: &str = "GPUs";
    let Some(gpu_node) = gpu_node else { return undetected(facts) };
    let node = facts.node.as_ref().ok().and_then(Option::as_ref).map(|node| &node.facts);
    let Some(report) = records::last_report(Some(gpu_node)) else {
        let (state, why) = unreported(facts);
        return Check::new(NAME, state, format!("a GPU was detected, but the probe has not reported yet: {why}"));
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
        return Check::new(
            NAME,
            state,
            format!("{on_bus}; this report is of an earlier boot, and the probe has not reported since: {why}"),
        );
    }
    let missing = counts.map(|counts| missing(counts, report)).unwrap_or_default();
    if missing.is_empty() {
        return Check::new(NAME, State::Done, on_bus);
    }
    let missing = missing.into_iter().map(|address| Evidence::new(format!("missing: {address}"))).collect();
    Check::new(NAME, State::Failed, on_bus).with(missing)
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
fn undetected(facts: &Facts) -> Check {
    const NAME: &str = "GPUs";
    if let Err(why) = &facts.gpu_node {
        return Check::new(NAME, State::Unknown, why.clone());
    }
    let node = facts.node.as_ref().ok().and_then(Option::as_ref).map(|node| &node.facts);
    let offered = node.map(|node| node.allocatable.total()).filter(|offered| *offered > 0);
    let offered =
        offered.map(|offered| format!("; the Node offers {offered} by a device plugin of another installation"));
    let offered = offered.unwrap_or_default();
    if node.is_some_and(|node| !node.has_linux_host()) {
        return Check::new(
            NAME,
            State::NotNeeded,
            format!("no Linux host is behind this Node, so it is not managed{offered}"),
        );
    }
    let namespace = &facts.namespace;
    match &facts.pods {
        Err(_) => Check::new(
            NAME,
            State::Unknown,
            format!("there is no GpuNode; whether the detector runs is not known{offered}"),
        ),
        Ok(pods) => match &pods.detector {
            Some(pod) if pod.phase == "Running" => Check::new(
                NAME,
                State::NotNeeded,
                format!("no NVIDIA GPU was detected on the PCI bus: the detector runs (pod {}){offered}", pod.name),
            ),
            Some(pod) => Check::new(
                NAME,
                State::Unknown,
                format!(
                    "the detector does not run: pod {} is {}; read kubectl -n {namespace} describe pod{offered}",
                    pod.name, pod.phase
                ),
            ),
            None => Check::new(
                NAME,
                State::Unknown,
                format!(
                    "the detector does not run on this node, so it is not known whether it has GPUs: check the DaemonSet of the \
                     detector in namespace {namespace}, and the node's taints{offered}"
                ),
            ),
        },
    }
}

/// Returns why the probe has not reported.
fn unreported(facts: &Facts) -> (State, String) {
    let Ok(pods) = &facts.pods else { return (State::Unknown, "the state of its pod is not known".to_owned()) };
    match pods.own.iter().find(|pod| pod.role == Role::Probe) {
        Some(pod) => (State::InProgress, Evidence::of_pod(pod).text),
        None => (State::Failed, "no pod of the probe runs on the node".to_owned()),
    }
}

pub fn policy(facts: &Facts, gpu_node: &GpuNode) -> Check {
    const NAME: &str = "Policy";
    let status = gpu_node.status.as_ref();
    let policies = facts.policies.as_deref().unwrap_or_default();
    let Some(name) = &gpu_node.spec.policy else {
        let excluded = format!("none: label {} excludes the node from every policy", keys::MANAGED);
        return match status.and_then(GpuNodeStatus::reason) {
            Some(Reason::OptedOut) => Check::new(NAME, State::NotNeeded, excluded),
            Some(Reason::Leaving) => {
                Check::new(NAME, State::InProgress, "none any more: the node is leaving its policy")
            }
            _ if facts.policies.is_err() => Check::new(NAME, State::Failed, "none governs the node"),
            _ if policies.is_empty() => Check::new(NAME, State::Failed, "none: the cluster has no ClusterGpuPolicy"),
            _ => {
                let names: Vec<String> = policies.iter().map(ResourceExt::name_any).collect();
                Check::new(
                    NAME,
                    State::Failed,
                    format!("none; the nodeSelector of {} does not select the node", names.join(", ")),
                )
            }
        };
    };
    let pool = gpu_node.spec.pool.as_ref();
    let detail = pool.map_or_else(|| name.to_string(), |pool| format!("{name}, pool {pool}"));
    let Some(policy) = facts.policy_of(gpu_node) else {
        let is_unknown = facts.policies.is_err();
        let state = if is_unknown { State::Done } else { State::InProgress };
        let gone = if is_unknown { "" } else { ", which does not exist any more" };
        return Check::new(NAME, state, format!("{detail}{gone}"));
    };
    let problem = pool.and_then(|pool| problem_of(policy, pool.as_str()));
    let state = if problem.is_some() { State::Failed } else { State::Done };
    let named = policy.spec.pools.iter().find(|named| Some(&named.name) == pool);
    let settings = named.map(settings);
    Check::new(NAME, state, detail).with(problem.into_iter().chain(settings).map(Evidence::new).collect())
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
