//! Why a pod does not get its GPUs, by its spec and its Events, or where it runs. Read are the pod, its Events, and its node, or
//! all nodes if it has none.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, GpuNodeStatus, Phase, keys};
use gpu_operator_diagnose::{Finding, Mistake, diagnose};
use gpu_operator_plan::{
    inventory::records,
    world::{NodeFacts, Placement, TrimmedNode, World, is_gpu},
};
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Event, Pod},
    jiff::Timestamp,
};
use kube::{Client, ResourceExt, api::ListParams};

use super::reason::plain;
use crate::{
    output::{Tone, age},
    read::{self, Listed, ReadError},
    report::{Line, Look, Report},
};

const NVIDIA: &str = "nvidia.com/";
/// The resource name of GPUs before Kubernetes 1.10.
const LEGACY: &str = "alpha.kubernetes.io/nvidia-gpu";
const MAX_NODES: usize = 10;

pub fn report(facts: &Facts, now: Timestamp) -> Report {
    let Facts { pod, events, world, missing } = facts;
    let spec = pod.spec.clone().unwrap_or_default();
    let mut notes: Vec<String> =
        missing.iter().map(|why| format!("not everything about the nodes is known: {why}")).collect();
    notes.extend(events.as_ref().err().map(|why| format!("the Events of the pod are not known: {why}")));
    let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
    let has_ended = matches!(phase.as_str(), "Succeeded" | "Failed");
    let findings = if has_ended { Vec::new() } else { findings(facts, now, &mut notes) };
    let requests = requests(pod, world);
    let node = spec.node_name.clone().filter(|node| !node.is_empty());
    let candidates = if (node.is_some() || !requests.is_empty()) && !has_ended {
        candidates(&Placement::of(&spec), node.as_deref(), &requests, world)
    } else {
        Vec::new()
    };
    let is_good = findings.is_empty();
    let mut sections = vec![vec![title(pod, &phase, &requests, now)]];
    if is_good {
        sections.push(vec![without_finding(pod, &phase, !requests.is_empty(), &candidates)]);
    }
    sections.extend(findings);
    sections.push(nodes(node.is_some(), candidates));
    sections.push(notes.into_iter().map(|note| Line::label("Note", format!("{note}."))).collect());
    Report { is_good, sections }
}

/// Returns the state of a pod, its requests, and what Kubernetes reports: why the pod is not scheduled, and containers that do not run.
fn title(pod: &Pod, phase: &str, requests: &BTreeMap<String, String>, now: Timestamp) -> Line {
    let amounts: Vec<_> = requests.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
    let requested = match (amounts.is_empty(), has_claims(pod)) {
        (false, _) => format!("requests {}", amounts.join(", ")),
        (true, true) => "requests no GPU resource, but has resource claims, which may be for GPUs".to_owned(),
        (true, false) => "requests no GPU".to_owned(),
    };
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
    let mut waiting = conditions.filter(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let why = waiting.next().and_then(|condition| condition.message.clone()).filter(|_| !is_placed);
    let reported = why.map(|message| format!("not scheduled: {message}")).into_iter();
    let reported = reported.chain(statuses(pod).filter_map(not_running));
    let created = pod.creation_timestamp().map(|since| format!("created {} ago", age(since.0, now)));
    Line {
        name: format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any()),
        cells: [phase.to_owned()].into_iter().chain(created).collect(),
        lines: [requested].into_iter().chain(reported).map(Line::text).collect(),
        look: Look::Title,
        ..Line::default()
    }
}

fn has_claims(pod: &Pod) -> bool {
    pod.spec.as_ref().and_then(|spec| spec.resource_claims.as_ref()).is_some_and(|claims| !claims.is_empty())
}

fn statuses(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.iter();
    status.flat_map(|status| status.init_container_statuses.iter().chain(&status.container_statuses).flatten())
}

/// Returns the certain findings, each with what to do.
fn findings(facts: &Facts, now: Timestamp, notes: &mut Vec<String>) -> Vec<Vec<Line>> {
    let Facts { pod, events, world, missing } = facts;
    let diagnosis = diagnose(pod, events.as_ref().ok().map(Vec::as_slice), world, now);
    let is_pending = pod.status.as_ref().is_none_or(|status| status.phase.as_deref() == Some("Pending"));
    if let Some(again) = diagnosis.check_again.filter(|again| is_pending && *again > now) {
        let seconds = again.duration_since(now).as_secs();
        notes
            .push(format!("the diagnosis is certain in {seconds}s: until then the pod may still be placed or started"));
    }
    let is_certain = |finding: &Finding| match finding.reason {
        Mistake::LegacyGpuResource | Mistake::HostDriverMounted | Mistake::GpuNotRequested => true,
        // Its containers run: the Event is of an earlier attempt.
        Mistake::RuntimeHandlerMissing => is_pending,
        Mistake::CudaTooNew | Mistake::RuntimeClassNotNamed | Mistake::NoNodeFits | Mistake::GpuNodesNotReady => {
            missing.is_empty()
        }
    };
    diagnosis.findings.into_iter().filter(is_certain).map(found).collect()
}

fn found(finding: Finding) -> Vec<Line> {
    let tone = if finding.reason.is_warning() { Tone::Bad } else { Tone::Warning };
    let line = Line { state: Some(tone), ..Line::named(finding.reason.as_str(), finding.message) };
    vec![line, Line::label("Do", plain(finding.reason.explanation().action))]
}

/// Returns what is known about a pod without a mistake.
fn without_finding(pod: &Pod, phase: &str, requests: bool, candidates: &[Line]) -> Line {
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).filter(|node| !node.is_empty());
    let devices: Vec<_> = statuses(pod).flat_map(devices).collect();
    let is_running = phase == "Running";
    let (tone, text) = match node {
        _ if matches!(phase, "Succeeded" | "Failed") => (Tone::Quiet, "The pod has ended and uses no GPU.".to_owned()),
        _ if !requests && !has_claims(pod) => {
            (Tone::Quiet, "It gets no GPU. If it needs one, set limits: {nvidia.com/gpu: 1} in a container.".to_owned())
        }
        Some(node) if is_running && devices.is_empty() => {
            let namespace = pod.namespace().unwrap_or_default();
            let list = format!("kubectl -n {namespace} exec {} -- nvidia-smi -L", pod.name_any());
            (Tone::Good, format!("It runs on node {node}. Kubelet does not publish its GPUs; to list them: {list}"))
        }
        Some(node) if is_running => (Tone::Good, format!("It runs on node {node} with {}.", devices.join(", "))),
        Some(node) => (Tone::Warning, format!("No mistake is found. It is assigned to node {node} and is starting.")),
        None if candidates.iter().any(|node| node.state == Some(Tone::Good)) => (
            Tone::Warning,
            "No mistake is found: nodes below offer enough. If the scheduler does not place it, other pods use their GPUs.".to_owned(),
        ),
        None => (Tone::Warning, "No mistake is found, but no node can run it now.".to_owned()),
    };
    Line { state: Some(tone), ..Line::text(text) }
}

/// Returns the first GPU nodes on which a pod may run, or its own one.
fn nodes(is_placed: bool, mut candidates: Vec<Line>) -> Vec<Line> {
    let count = candidates.len();
    let title = match (is_placed, count) {
        (_, 0) => return Vec::new(),
        (true, _) => "Its node, with what is allocatable, in use or not:".to_owned(),
        (false, 1) => "1 GPU node matches, with what is allocatable, in use or not:".to_owned(),
        (false, count) => format!("{count} GPU nodes match, with what is allocatable, in use or not:"),
    };
    candidates.truncate(MAX_NODES);
    let more = (count > MAX_NODES).then(|| Line::text(format!("and {} more", count - MAX_NODES)));
    [Line::text(title)].into_iter().chain(candidates).chain(more).collect()
}

/// Returns the GPU resources that a pod requests, with their amounts. Init containers end before the main containers start, so the
/// larger of the two amounts counts.
fn requests(pod: &Pod, world: &World) -> BTreeMap<String, String> {
    let Some(spec) = &pod.spec else { return BTreeMap::new() };
    let named = world.gpu_requests().resources;
    let is_gpu = |name: &str| name.starts_with(NVIDIA) || name == LEGACY || named.contains(name);
    let amounts = |container: &Container| {
        let resources = container.resources.clone().unwrap_or_default();
        let all: BTreeMap<_, _> =
            resources.requests.unwrap_or_default().into_iter().chain(resources.limits.unwrap_or_default()).collect();
        all.into_iter().filter(|(name, amount)| is_gpu(name) && amount.0 != "0").collect::<Vec<_>>()
    };
    let mut totals = BTreeMap::<String, u64>::new();
    let mut texts = BTreeMap::new();
    for (name, amount) in spec.containers.iter().flat_map(amounts) {
        let total = totals.entry(name.clone()).or_default();
        *total = total.saturating_add(amount.0.parse().unwrap_or_default());
        // An amount in another notation is shown as it is written.
        texts.insert(name, if *total > 0 { total.to_string() } else { amount.0 });
    }
    for (name, amount) in spec.init_containers.iter().flatten().flat_map(amounts) {
        let count = amount.0.parse().unwrap_or_default();
        if totals.get(&name).is_none_or(|total| *total < count) {
            totals.insert(name.clone(), count);
            texts.insert(name, amount.0);
        }
    }
    texts
}

/// Returns the GPU nodes on which a pod may run, with what each offers, whether or not other pods use it; only its own node, if it is
/// assigned to one. Those on which it can be placed now come first.
fn candidates(
    placement: &Placement,
    node: Option<&str>,
    requests: &BTreeMap<String, String>,
    world: &World,
) -> Vec<Line> {
    let named = world.gpu_requests().resources;
    let of = |facts: &NodeFacts| {
        let gpu_node = records::gpu_node_of(world, facts);
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        let offered = facts.allocatable.names().filter(|name| is_gpu(name) || named.contains(name.as_str()));
        let mut allocatable: BTreeMap<_, _> =
            offered.map(|name| (name.to_string(), facts.allocatable.amount(name))).collect();
        if let Some(by_claims) = status.map(|status| records::by_claims(&status.gpus)).filter(|gpus| *gpus > 0) {
            *allocatable.entry(keys::GPU_RESOURCE.to_owned()).or_default() += by_claims;
        }
        if gpu_node.is_none() && allocatable.values().all(|amount| *amount == 0) && node.is_none() {
            return None;
        }
        let enough = |(name, amount): (&String, &String)| {
            amount.parse::<u32>().is_ok_and(|amount| allocatable.get(name).copied().unwrap_or_default() >= amount)
        };
        let (offers_enough, obstacle) = (requests.iter().all(enough), obstacle(placement, facts, status));
        let obstacle = Some(obstacle).filter(|obstacle| !obstacle.is_empty() && node.is_none());
        let rank = (!offers_enough, obstacle.is_some());
        let tone = if rank == (false, false) { Tone::Good } else { Tone::Warning };
        let model = status.and_then(|status| status.model.as_ref());
        let name = model.map_or_else(|| facts.name.to_string(), |model| format!("{} ({model})", facts.name));
        let amounts: Vec<_> = allocatable.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
        let amounts = if amounts.is_empty() { "no GPU".to_owned() } else { amounts.join(", ") };
        let text = [amounts].into_iter().chain(obstacle).collect::<Vec<_>>().join("; ");
        Some((rank, Line { state: Some(tone), ..Line::named(name, text) }))
    };
    let is_meant = |facts: &&Arc<NodeFacts>| match node {
        Some(node) => facts.name.as_str() == node,
        None => placement.means(&facts.name, |key| facts.labels.get(key).map(Interned::as_str)),
    };
    let mut found: Vec<_> = world.nodes.values().filter(is_meant).filter_map(|facts| of(facts)).collect();
    found.sort_by_key(|(rank, _)| *rank);
    found.into_iter().map(|(_, line)| line).collect()
}

fn obstacle(placement: &Placement, node: &NodeFacts, status: Option<&GpuNodeStatus>) -> String {
    if !node.ready {
        return "NotReady".to_owned();
    }
    if node.cordoned {
        return "cordoned".to_owned();
    }
    if !placement.tolerates(node) {
        return "has a taint that the pod does not tolerate".to_owned();
    }
    let not_ready = status.filter(|status| status.phase != Phase::Ready);
    let reason =
        |status: &GpuNodeStatus| status.reason.as_ref().map(|reason| format!(", {reason}")).unwrap_or_default();
    not_ready.map(|status| format!("phase {}{}", status.phase.as_str(), reason(status))).unwrap_or_default()
}

fn not_running(status: &ContainerStatus) -> Option<String> {
    let state = status.state.as_ref()?;
    let (why, message) = match (&state.waiting, &state.terminated) {
        (Some(waiting), _) => (waiting.reason.clone().unwrap_or_default(), waiting.message.clone()),
        (None, Some(ended)) if ended.exit_code != 0 => {
            (format!("exited with {}", ended.exit_code), ended.message.clone())
        }
        _ => return None,
    };
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    let last = last.map(|last| format!("; its last run exited with {}", last.exit_code)).unwrap_or_default();
    let message = message.map(|message| format!(": {}", message.trim())).unwrap_or_default();
    Some(format!("container {}: {why}{message}{last}", status.name))
}

/// Returns the ids of the GPUs of a container, which newer kubelets publish.
fn devices(status: &ContainerStatus) -> Vec<String> {
    let of_gpus =
        status.allocated_resources_status.iter().flatten().filter(|resource| resource.name.starts_with(NVIDIA));
    of_gpus.flat_map(|resource| resource.resources.iter().flatten()).map(|device| device.resource_id.clone()).collect()
}

#[derive(Clone, Debug)]
pub struct Facts {
    pub pod: Pod,
    /// Its Events, or why they are not known.
    pub events: Result<Vec<Event>, String>,
    /// The policies, and the node of the pod or all nodes.
    pub world: World,
    /// Why the world is incomplete.
    pub missing: Vec<String>,
}

/// Reads the facts, or `None` if there is no such pod.
pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Option<Facts>, ReadError> {
    let Some(pod) = read::get::<Pod>(client, Some(namespace), name).await? else { return Ok(None) };
    let params = ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid().unwrap_or_default()));
    let events = read::list::<Event>(client, Some(namespace), params).await;
    let events = events.map(|listed| listed.items).map_err(|error| error.to_string());
    let mut facts = Facts { pod, events, world: World::default(), missing: Vec::new() };
    let node = facts.pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let policies = read::list::<ClusterGpuPolicy>(client, None, ListParams::default()).await;
    for policy in facts.known(policies).unwrap_or_default() {
        facts.world.policies.insert(policy.name_any().into(), Arc::new(policy));
    }
    let gpu_nodes = objects::<GpuNode>(client, node.as_deref()).await;
    if let Some(listed) = facts.checked(gpu_nodes) {
        facts.world.unreadable_gpu_nodes.extend(listed.unreadable.iter().map(|name| name.as_str().into()));
        for gpu_node in listed.items {
            facts.world.gpu_nodes.insert(gpu_node.name_any().into(), Arc::new(gpu_node));
        }
    }
    let nodes = objects::<TrimmedNode>(client, node.as_deref()).await;
    for node in facts.known(nodes).unwrap_or_default() {
        let node = NodeFacts::of(&node);
        facts.world.nodes.insert(node.name.clone(), Arc::new(node));
    }
    Ok(Some(facts))
}

async fn objects<K>(client: &Client, name: Option<&str>) -> Result<Listed<K>, ReadError>
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    match name {
        Some(name) => {
            let items = read::get::<K>(client, None, name).await?.into_iter().collect();
            Ok(Listed { items, unreadable: Vec::new() })
        }
        None => read::list::<K>(client, None, ListParams::default()).await,
    }
}

impl Facts {
    /// Returns the objects that could be read, and records why others could not.
    fn known<K>(&mut self, read: Result<Listed<K>, ReadError>) -> Option<Vec<K>> {
        let listed = self.checked(read)?;
        self.missing.extend(listed.unreadable.iter().map(|name| format!("object {name} cannot be parsed")));
        Some(listed.items)
    }

    fn checked<K>(&mut self, read: Result<Listed<K>, ReadError>) -> Option<Listed<K>> {
        read.map_err(|error| self.missing.push(error.to_string())).ok()
    }
}
