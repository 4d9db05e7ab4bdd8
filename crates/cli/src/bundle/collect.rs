//! Reads what a support bundle contains: of own objects, Nodes and Events the fields that `allowed.rs` lists, and the logs of the
//! operator's own containers. Nothing else is read.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use futures::{StreamExt, stream};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    core::v1::{Event, Node, Pod},
};
use kube::{
    Api, Client, Resource,
    api::{ApiResource, DynamicObject, ListParams, LogParams},
};
use serde_json::{Value, json};

use super::{
    allowed::picked,
    archive::{Archive, Missing},
};
use crate::read::{ReadError, classify, each};

/// The Events about objects that have no namespace are in this one.
const DEFAULT_NAMESPACE: &str = "default";
/// The number of nodes whose logs are read concurrently.
const CONCURRENT: usize = 8;
/// The number of lines that are read of each log, the last ones.
const LINES: i64 = 4000;
/// The containers of the chart's pods. Containers of other pods are the operator's own if their images are.
const CONTAINERS: [&str; 3] = ["gpu-operator", "nvml-probe", "detector"];

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of nodes whose logs are read; `None`: no logs, not those of the operator either.
    pub nodes: Option<usize>,
    /// From how many seconds ago logs are read.
    pub since: Option<i64>,
}

pub struct Collector<'a, W: Write> {
    pub client: &'a Client,
    /// The operator's namespace.
    pub namespace: &'a str,
    pub archive: Archive<W>,
    pub missing: BTreeSet<Missing>,
    /// Reports a step to people.
    pub progress: fn(&str),
}

impl<W: Write> Collector<'_, W> {
    /// Reads everything that a bundle contains, and returns the names of the nodes whose logs it contains.
    pub async fn collect(&mut self, options: Options) -> io::Result<Vec<String>> {
        let all = ListParams::default;
        let here = Some(self.namespace);
        self.objects::<ClusterGpuPolicy>("policies", None, all()).await?;
        let gpu_nodes = self.objects::<GpuNode>("gpunodes", None, all()).await?;
        self.objects::<Node>("nodes", None, all()).await?;
        // The objects of the chart, and those that the operator creates.
        let (of_chart, of_operator) = (format!("{}={}", keys::PART_OF.0, keys::PART_OF.1), keys::STAGE);
        let mut workloads = self.objects::<Deployment>("deployments", here, all().labels(&of_chart)).await?;
        let mut pods = Vec::new();
        for labels in [of_chart.as_str(), of_operator] {
            workloads.extend(self.objects::<DaemonSet>("daemonsets", here, all().labels(labels)).await?);
            pods.extend(self.objects::<Pod>("pods", here, all().labels(labels)).await?);
        }
        self.events(self.namespace, all()).await?;
        self.events(DEFAULT_NAMESPACE, all().fields(&format!("reportingComponent={}", keys::MANAGER))).await?;
        match options.nodes {
            Some(nodes) => self.logs(&own_logs(&workloads, &pods), &order(&gpu_nodes), nodes, options.since).await,
            None => Ok(Vec::new()),
        }
    }

    /// Adds the objects of a kind to a folder, and returns what was added.
    async fn objects<K: Resource<DynamicType = ()>>(
        &mut self,
        folder: &str,
        namespace: Option<&str>,
        params: ListParams,
    ) -> io::Result<Vec<Value>> {
        let found = self.read::<K>(folder, namespace, params).await;
        for object in &found {
            self.archive.add_object(&format!("{folder}/{}.json", name(object)), object)?;
        }
        Ok(found)
    }

    /// Reads what the bundle contains of the objects of a kind. Failures are recorded.
    async fn read<K: Resource<DynamicType = ()>>(
        &mut self,
        what: &str,
        namespace: Option<&str>,
        params: ListParams,
    ) -> Vec<Value> {
        let mut found = Vec::new();
        let resource = ApiResource::erase::<K>(&());
        let take = |object: DynamicObject| {
            if let Ok(object) = serde_json::to_value(object) {
                let mut object = picked(&resource.kind, &object);
                // Items of lists do not have it.
                object["apiVersion"] = resource.api_version.clone().into();
                object["kind"] = resource.kind.clone().into();
                found.push(object);
            }
        };
        if let Err(error) = each(self.client, namespace, &resource, params, take).await {
            self.miss(what, &error);
        }
        (self.progress)(&format!("{what}: {}", found.len()));
        found
    }

    fn miss(&mut self, what: &str, error: &ReadError) {
        let missing = Missing { what: what.to_owned(), reason: error.to_string() };
        if self.missing.insert(missing) {
            (self.progress)(&format!("{what}: not read: {error}"));
        }
    }

    async fn events(&mut self, namespace: &str, params: ListParams) -> io::Result<()> {
        let what = format!("events in namespace {namespace}");
        let events = self.read::<Event>(&what, Some(namespace), params).await;
        if events.is_empty() {
            return Ok(());
        }
        let list = json!({"apiVersion": "v1", "kind": "EventList", "items": events});
        self.archive.add_object(&format!("events/{namespace}.json"), &list)
    }

    /// Adds the logs of the operator, and those of the first nodes.
    async fn logs(
        &mut self,
        of_nodes: &BTreeMap<String, Vec<Log>>,
        ordered: &[String],
        limit: usize,
        since: Option<i64>,
    ) -> io::Result<Vec<String>> {
        let (chosen, others) = ordered.split_at(limit.min(ordered.len()));
        let chosen: Vec<String> = chosen.to_vec();
        let (client, namespace) = (self.client, self.namespace);
        let nodes = [OPERATOR].into_iter().chain(chosen.iter().map(String::as_str));
        let mut read = stream::iter(nodes)
            .map(|node| {
                let logs = of_nodes.get(node).map(Vec::as_slice).unwrap_or_default();
                logs_of(client, namespace, logs, since)
            })
            .buffered(CONCURRENT);
        while let Some(logs) = read.next().await {
            for (path, text) in logs {
                match text {
                    Ok(text) => self.archive.add(&path, &text)?,
                    // For all of them.
                    Err(error @ ReadError::Forbidden(_)) => self.miss("logs", &error),
                    Err(error) => self.miss(&path, &error),
                }
            }
        }
        drop(read);
        if !others.is_empty() {
            let what = format!("logs of {} other nodes", others.len());
            self.missing.insert(Missing { what, reason: "--nodes".to_owned() });
        }
        (self.progress)(&format!("nodes with logs: {}", chosen.len()));
        Ok(chosen)
    }
}

/// The key of the operator's logs among those of nodes.
const OPERATOR: &str = "";

/// A log of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Log {
    pod: String,
    container: String,
    /// Whether it is that of the previous run.
    previous: bool,
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}

/// Returns the names of the nodes with GPUs, first those that are not ready.
fn order(gpu_nodes: &[Value]) -> Vec<String> {
    let (ready, mut ordered): (Vec<_>, Vec<_>) = gpu_nodes.iter().partition(|node| node["status"]["phase"] == "Ready");
    ordered.extend(ready);
    ordered.into_iter().map(|node| name(node).to_owned()).collect()
}

/// Returns the logs of the operator's own containers, by node. An upstream program's log may contain values of its variables, and one of
/// another component that was added to a pod, anything.
fn own_logs(workloads: &[Value], pods: &[Value]) -> BTreeMap<String, Vec<Log>> {
    let of_chart =
        workloads.iter().filter(|workload| workload["metadata"]["labels"][keys::PART_OF.0] == keys::PART_OF.1);
    let of_chart = of_chart.flat_map(|workload| list(&workload["spec"]["template"]["spec"], &["containers"]));
    let of_chart = of_chart.filter(|container| CONTAINERS.iter().any(|name| container["name"] == *name));
    let own: BTreeSet<&str> = of_chart.map(repository).collect();
    let mut found: BTreeMap<String, Vec<Log>> = BTreeMap::new();
    for pod in pods {
        let is_operator = pod["metadata"]["labels"][keys::NAME] == keys::OPERATOR_NAME;
        let node = if is_operator { OPERATOR } else { pod["spec"]["nodeName"].as_str().unwrap_or_default() };
        let containers = list(&pod["spec"], &["initContainers", "containers"]);
        let own = containers.filter(|container| own.contains(repository(container)));
        let own: BTreeSet<&str> = own.filter_map(|container| container["name"].as_str()).collect();
        for status in list(&pod["status"], &["initContainerStatuses", "containerStatuses"]) {
            let Some(container) = status["name"].as_str().filter(|name| own.contains(name)) else { continue };
            let has = |field: &str, state: &str| status[field][state].is_object();
            let current = has("state", "running") || has("state", "terminated");
            let runs = [(current, false), (has("lastState", "terminated"), true)];
            let logs = runs.into_iter().filter(|(has_log, _)| *has_log).map(|(_, previous)| Log {
                pod: name(pod).to_owned(),
                container: container.to_owned(),
                previous,
            });
            found.entry(node.to_owned()).or_default().extend(logs);
        }
    }
    found
}

fn list<'v>(object: &'v Value, fields: &[&str]) -> impl Iterator<Item = &'v Value> {
    let lists: Vec<_> = fields.iter().filter_map(|field| object[*field].as_array()).collect();
    lists.into_iter().flatten()
}

/// Returns the image of a container without tag and digest, so that pods of the previous version count, too.
fn repository(container: &Value) -> &str {
    let image = container["image"].as_str().unwrap_or_default();
    let image = image.split('@').next().unwrap_or_default();
    // A colon before a slash belongs to a port.
    image.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(image, |(repository, _)| repository)
}

/// Reads logs of one node, with their paths in the archive. A node that does not answer is not asked again.
async fn logs_of(
    client: &Client,
    namespace: &str,
    logs: &[Log],
    since: Option<i64>,
) -> Vec<(String, Result<String, ReadError>)> {
    let api = Api::<Pod>::namespaced(client.clone(), namespace);
    let resource = ApiResource { plural: "pods/log".to_owned(), ..ApiResource::erase::<Pod>(&()) };
    let mut found = Vec::new();
    for Log { pod, container, previous } in logs {
        let params = LogParams {
            container: Some(container.clone()),
            previous: *previous,
            since_seconds: since,
            tail_lines: Some(LINES),
            timestamps: true,
            ..LogParams::default()
        };
        let path = format!("logs/{pod}/{container}{}.log", if *previous { ".previous" } else { "" });
        let text = api.logs(pod, &params).await.map_err(|error| match error {
            // The pod, and not the resource, does not exist any more.
            kube::Error::Api(status) if status.is_not_found() => {
                ReadError::Rejected(format!("get pods/log {pod}"), kube::Error::Api(status))
            }
            error => classify("get", &resource, Some(pod), error),
        });
        let is_last = matches!(text, Err(ReadError::Forbidden(_) | ReadError::Unreachable(_)));
        found.push((path, text));
        if is_last {
            break;
        }
    }
    found
}
