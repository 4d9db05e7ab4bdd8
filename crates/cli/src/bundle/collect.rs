//! Reads what a support bundle contains. Neither Secrets nor ConfigMaps are read.

use std::collections::BTreeMap;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use k8s_openapi::{
    api::{
        admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding},
        apps::v1::{DaemonSet, Deployment},
        core::v1::{Event, Node},
        node::v1::RuntimeClass,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Client, Resource,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{
    contents::Contents,
    order::order,
    pods::{LogOptions, is_own, pods},
    trim,
};
use crate::read::{ReadError, each};

/// The Events about objects that have no namespace are in this one.
const DEFAULT_NAMESPACE: &str = "default";
/// The maximum number of Events of a namespace; the latest are kept.
const MAX_EVENTS: usize = 2000;
/// The number of nodes whose pods are read concurrently.
const CONCURRENT: usize = 8;

#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The number of nodes of which pods, logs and metrics are read.
    pub nodes: usize,
    /// Which logs are read.
    pub logs: LogOptions,
    /// The limit for all logs, in bytes.
    pub all_logs: usize,
    /// Reports a step to people.
    pub progress: fn(&str),
}

/// What has been collected.
#[derive(Debug)]
pub struct Collected {
    /// The contents of the bundle.
    pub contents: Contents,
    /// The nodes of which pods, logs and metrics were read.
    pub nodes: Vec<String>,
}

/// Reads everything that a bundle contains, the most important first.
pub async fn collect(client: &Client, namespace: &str, options: Options) -> Collected {
    let mut collector = Collector { client, namespace, options, contents: Contents::default() };
    let policies = collector.read::<ClusterGpuPolicy>("policies", None, ListParams::default()).await;
    collector.add("policies", &policies);
    collector.chart().await;
    collector.operator_pods().await;
    for (namespace, params) in [
        (namespace, ListParams::default()),
        (DEFAULT_NAMESPACE, ListParams::default().fields("reportingComponent=gpu-operator")),
    ] {
        collector.events(namespace, params).await;
    }
    let gpu_nodes = by_name(collector.read::<GpuNode>("gpunodes", None, ListParams::default()).await);
    let nodes = by_name(collector.read_each::<Node>("nodes", None, ListParams::default(), trim::node).await);
    let ordered = order(&policies, &gpu_nodes, &nodes);
    let (chosen, others) = ordered.split_at(options.nodes.min(ordered.len()));
    for chunk in chosen.chunks(CONCURRENT) {
        collector.nodes(chunk, &gpu_nodes, &nodes).await;
    }
    for name in others {
        collector.add_node(name, &gpu_nodes, &nodes);
    }
    if !others.is_empty() {
        let what = format!("pods, logs and metrics of {} other nodes", others.len());
        collector.contents.leave_out(&what, "--nodes");
    }
    (options.progress)(&format!("nodes with logs: {}", chosen.len()));
    Collected { contents: collector.contents, nodes: chosen.to_vec() }
}

struct Collector<'a> {
    client: &'a Client,
    namespace: &'a str,
    options: Options,
    contents: Contents,
}

impl Collector<'_> {
    async fn read<K>(&mut self, what: &str, namespace: Option<&str>, params: ListParams) -> Vec<Value>
    where
        K: Resource<DynamicType = ()>,
    {
        self.read_each::<K>(what, namespace, params, Value::clone).await
    }

    /// Reads all objects of a kind, of which `part` returns what is kept. What cannot be read is recorded.
    async fn read_each<K>(
        &mut self,
        what: &str,
        namespace: Option<&str>,
        params: ListParams,
        part: impl Fn(&Value) -> Value,
    ) -> Vec<Value>
    where
        K: Resource<DynamicType = ()>,
    {
        let mut found = Vec::new();
        let resource = ApiResource::erase::<K>(&());
        let take = |object: DynamicObject| found.extend(typed(object, &resource).map(|value| part(&value)));
        if let Err(error) = each(self.client, namespace, &resource, params, take).await {
            self.unread(what, &error);
        }
        found.sort_by_key(|object| name(object).to_owned());
        (self.options.progress)(&format!("{what}: {}", found.len()));
        found
    }

    fn unread(&mut self, what: &str, error: &ReadError) {
        (self.options.progress)(&format!("{what}: not read: {error}"));
        self.contents.add_unread(what, error);
    }

    fn add(&mut self, folder: &str, objects: &[Value]) {
        for object in objects {
            self.contents.add_object(format!("{folder}/{}.json", name(object)), object.clone());
        }
    }

    /// Reads the objects of the chart, and those that the operator creates beside its pods.
    async fn chart(&mut self) {
        let (label, value) = keys::PART_OF;
        let (namespace, labelled) =
            (Some(self.namespace), || ListParams::default().labels(&format!("{label}={value}")));
        let deployments = self.read::<Deployment>("deployments", namespace, labelled()).await;
        self.add("deployments", &deployments);
        let mut sets = self.read::<DaemonSet>("daemonsets", namespace, ListParams::default()).await;
        sets.retain(|set| serde_json::from_value(set.clone()).is_ok_and(|set: DynamicObject| is_own(&set)));
        self.add("daemonsets", &sets);
        let classes = self.read::<RuntimeClass>("runtimeclasses", None, ListParams::default()).await;
        self.add("runtimeclasses", &classes);
        for name in [ClusterGpuPolicy::plural(&()), GpuNode::plural(&())] {
            let only = ListParams::default().fields(&format!("metadata.name={name}.{}", ClusterGpuPolicy::group(&())));
            let what = format!("customresourcedefinitions {name}");
            let found = self.read_each::<CustomResourceDefinition>(&what, None, only, trim::definition).await;
            self.add("customresourcedefinitions", &found);
        }
        let policies = self.read::<ValidatingAdmissionPolicy>("validatingadmissionpolicies", None, labelled()).await;
        self.add("validatingadmissionpolicies", &policies);
        let what = "validatingadmissionpolicybindings";
        let bindings = self.read::<ValidatingAdmissionPolicyBinding>(what, None, labelled()).await;
        self.add(what, &bindings);
    }

    async fn operator_pods(&mut self) {
        for (params, whose) in [
            (ListParams::default().labels(&keys::selector(keys::OPERATOR_NAME)), "of the operator"),
            (ListParams::default().fields("spec.nodeName="), "without a node"),
        ] {
            let (client, namespace) = (self.client.clone(), self.namespace.to_owned());
            let (found, contents) = pods(client, namespace, params, whose.to_owned(), self.options.logs).await;
            (self.options.progress)(&format!("pods {whose}: {}", found.len()));
            self.contents.append(contents);
        }
    }

    async fn events(&mut self, namespace: &str, params: ListParams) {
        let what = format!("events in namespace {namespace}");
        let mut events = self.read::<Event>(&what, Some(namespace), params).await;
        let time = |event: &Value| {
            let time = |field: &str| event[field].as_str().map(str::to_owned);
            let series = event["series"]["lastObservedTime"].as_str().map(str::to_owned);
            series.or_else(|| time("lastTimestamp")).or_else(|| time("eventTime")).unwrap_or_default()
        };
        events.sort_by_key(time);
        let earlier = events.len().saturating_sub(MAX_EVENTS);
        events.drain(..earlier);
        if earlier > 0 {
            self.contents.leave_out(&format!("{earlier} earlier {what}"), &format!("{MAX_EVENTS} events"));
        }
        let list = json!({"apiVersion": "v1", "kind": "EventList", "items": events});
        self.contents.add_object(format!("events/{namespace}.json"), list);
    }

    /// Adds some nodes, with their pods, logs and metrics.
    async fn nodes(&mut self, names: &[String], gpu_nodes: &BTreeMap<String, Value>, nodes: &BTreeMap<String, Value>) {
        let mut logs = self.options.logs;
        let is_full = logs.enabled && self.contents.size_of("logs/") >= self.options.all_logs;
        logs.enabled &= !is_full;
        let mut tasks = JoinSet::new();
        for (index, name) in names.iter().enumerate() {
            let (client, namespace) = (self.client.clone(), self.namespace.to_owned());
            let params = ListParams::default().fields(&format!("spec.nodeName={name}"));
            let read = pods(client, namespace, params, format!("of node {name}"), logs);
            tasks.spawn(async move { (index, read.await.1) });
        }
        let mut of_nodes: BTreeMap<usize, Contents> = tasks.join_all().await.into_iter().collect();
        for (index, name) in names.iter().enumerate() {
            self.add_node(name, gpu_nodes, nodes);
            self.contents.append(of_nodes.remove(&index).unwrap_or_default());
            if is_full {
                let reason = format!("the limit of {} bytes for all logs", self.options.all_logs);
                self.contents.leave_out(&format!("logs of node {name}"), &reason);
            }
        }
    }

    fn add_node(&mut self, name: &str, gpu_nodes: &BTreeMap<String, Value>, nodes: &BTreeMap<String, Value>) {
        for (folder, objects) in [("gpunodes", gpu_nodes), ("nodes", nodes)] {
            self.add(folder, objects.get(name).map(std::slice::from_ref).unwrap_or_default());
        }
    }
}

/// Returns an object with its type, which items of lists do not have.
fn typed(object: DynamicObject, resource: &ApiResource) -> Option<Value> {
    let mut value = serde_json::to_value(object).ok()?;
    value["apiVersion"] = resource.api_version.clone().into();
    value["kind"] = resource.kind.clone().into();
    Some(value)
}

fn by_name(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects.into_iter().map(|object| (name(&object).to_owned(), object)).collect()
}

fn name(object: &Value) -> &str {
    object["metadata"]["name"].as_str().unwrap_or_default()
}
