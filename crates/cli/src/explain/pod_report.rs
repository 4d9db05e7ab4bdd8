//! Why a pod does not get its GPUs, by its spec and its Events, or where it runs. Read are the pod, its Events, and its node, or
//! all nodes if it has none.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, GpuNodeStatus, Phase};
use gpu_operator_diagnose::{Finding, Mistake, diagnose};
use gpu_operator_plan::{
    inventory::records,
    world::{NodeFacts, Placement, TrimmedNode, World, is_gpu},
};
use k8s_openapi::{
    api::core::v1::{Container, ContainerStatus, Event, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{Client, ResourceExt, api::ListParams};
use serde::Serialize;

use super::reasons::{Topic, plain};
use crate::{
    context::Outcome,
    explain::target::ExplainError,
    read::{self, Listed, ReadError},
};

const NVIDIA: &str = "nvidia.com/";
/// The resource name of GPUs before Kubernetes 1.10.
const LEGACY: &str = "alpha.kubernetes.io/nvidia-gpu";
const MAX_NODES: usize = 10;

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodReport {
    pub namespace: String,
    pub pod: String,
    pub phase: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    pub requests: BTreeMap<String, String>,
    /// Whether it has resource claims, which may be for GPUs.
    pub claims: bool,
    /// The ids of the devices that kubelet has assigned to it. Empty if kubelet does not publish them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// What Kubernetes reports: why the pod is not scheduled, and containers that do not run.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reported: Vec<String>,
    pub findings: Vec<Found>,
    /// The number of nodes that its node selector and affinity match and that have GPUs.
    pub matching_nodes: usize,
    /// The first of them; or its own node.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<Candidate>,
    /// What is not known, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl PodReport {
    pub fn outcome(&self) -> Outcome {
        if self.findings.is_empty() { Outcome::Good } else { Outcome::Bad }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Found {
    pub reason: &'static str,
    pub warning: bool,
    /// The explanation, with the values of this pod.
    pub message: String,
    /// What to do in general.
    pub action: String,
}

/// A node on which a pod may run, or runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Candidate {
    pub node: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// What it offers, by resource, whether or not other pods use it.
    pub allocatable: BTreeMap<String, u32>,
    pub offers_enough: bool,
    /// Why the pod cannot be placed on it now. Empty if it can.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub obstacle: String,
}

pub fn report(facts: &Facts, now: Timestamp) -> PodReport {
    let Facts { pod, events, world, missing } = facts;
    let spec = pod.spec.clone().unwrap_or_default();
    let status = pod.status.clone().unwrap_or_default();
    let mut notes: Vec<String> =
        missing.iter().map(|why| format!("not everything about the nodes is known: {why}")).collect();
    notes.extend(events.as_ref().err().map(|why| format!("the Events of the pod are not known: {why}")));
    let phase = status.phase.clone().unwrap_or_default();
    let has_ended = matches!(phase.as_str(), "Succeeded" | "Failed");
    let findings = if has_ended { Vec::new() } else { findings(facts, now, &mut notes) };
    let requests = requests(pod, world);
    let node = spec.node_name.clone().filter(|node| !node.is_empty());
    let claims = spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    let scheduling = status
        .conditions
        .iter()
        .flatten()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status == "False");
    let not_scheduled = scheduling.and_then(|condition| condition.message.clone()).filter(|_| node.is_none());
    let statuses = || status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    let reported = not_scheduled
        .map(|message| format!("not scheduled: {message}"))
        .into_iter()
        .chain(statuses().filter_map(not_running));
    let is_placed = node.is_some() || !requests.is_empty();
    let candidates = if is_placed && !has_ended {
        candidates(&Placement::of(&spec), node.as_deref(), &requests, world)
    } else {
        Vec::new()
    };
    PodReport {
        namespace: pod.namespace().unwrap_or_default(),
        pod: pod.name_any(),
        phase,
        since: pod.creation_timestamp(),
        node,
        requests,
        claims,
        devices: statuses().flat_map(devices).collect(),
        reported: reported.collect(),
        findings,
        matching_nodes: candidates.len(),
        nodes: candidates.into_iter().take(MAX_NODES).collect(),
        notes,
    }
}

/// Returns the certain findings.
fn findings(facts: &Facts, now: Timestamp, notes: &mut Vec<String>) -> Vec<Found> {
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

fn found(finding: Finding) -> Found {
    let topic = Topic::Pod(finding.reason);
    let entry = topic.entries().first();
    Found {
        reason: topic.name(),
        warning: finding.reason.is_warning(),
        message: finding.message,
        action: entry.map(|entry| plain(entry.action)).unwrap_or_default(),
    }
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

/// Returns the GPU nodes on which a pod may run; only its own node, if it is assigned to one.
fn candidates(
    placement: &Placement,
    node: Option<&str>,
    requests: &BTreeMap<String, String>,
    world: &World,
) -> Vec<Candidate> {
    let named = world.gpu_requests().resources;
    let of = |facts: &NodeFacts| {
        let gpu_node = records::gpu_node_of(world, facts);
        let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
        let offered = facts.allocatable.names().filter(|name| is_gpu(name) || named.contains(name.as_str()));
        let allocatable: BTreeMap<_, _> =
            offered.map(|name| (name.to_string(), facts.allocatable.amount(name))).collect();
        if gpu_node.is_none() && allocatable.values().all(|amount| *amount == 0) && node.is_none() {
            return None;
        }
        let enough = |(name, amount): (&String, &String)| {
            amount.parse::<u32>().is_ok_and(|amount| facts.allocatable.amount(name) >= amount)
        };
        Some(Candidate {
            node: facts.name.to_string(),
            model: status.and_then(|status| status.model.clone()),
            offers_enough: requests.iter().all(enough),
            obstacle: if node.is_some() { String::new() } else { obstacle(placement, facts, status) },
            allocatable,
        })
    };
    let is_meant = |facts: &&Arc<NodeFacts>| match node {
        Some(node) => facts.name.as_str() == node,
        None => placement.means(&facts.name, |key| facts.labels.get(key).map(Interned::as_str)),
    };
    let mut found: Vec<_> = world.nodes.values().filter(is_meant).filter_map(|facts| of(facts)).collect();
    found.sort_by_key(|candidate| (!candidate.offers_enough, !candidate.obstacle.is_empty()));
    found
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

pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Facts, ExplainError> {
    let Some(pod) = read::get::<Pod>(client, Some(namespace), name).await? else {
        let list = format!("kubectl get pods --namespace {namespace}");
        return Err(ExplainError::NotFound { what: format!("pod {namespace}/{name}"), list });
    };
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
    Ok(facts)
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
