//! Reads what a support bundle contains. Neither Secrets nor ConfigMaps are read.

use std::collections::{BTreeMap, BTreeSet};

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
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::{
    archive::{Contents, sha256},
    pods::{LogOptions, is_own, pods},
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
    /// The number of nodes whose pods, logs and metrics are read.
    pub nodes: usize,
    pub logs: LogOptions,
    /// The limit for all logs, in bytes.
    pub all_logs: usize,
    /// Reports a step to people.
    pub progress: fn(&str),
}

#[derive(Debug)]
pub struct Collected {
    pub contents: Contents,
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
    let nodes = by_name(collector.read_each::<Node>("nodes", None, ListParams::default(), node).await);
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

    /// Reads all objects of a kind, and keeps the `part` of each. Failures are recorded.
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
            let found = self.read_each::<CustomResourceDefinition>(&what, None, only, definition).await;
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

/// Returns the names of all nodes: those that policies list in `status.attention`, then those with a GPU that are not ready, then the
/// others with a GPU, then all others; each by name.
pub fn order(policies: &[Value], gpu_nodes: &BTreeMap<String, Value>, nodes: &BTreeMap<String, Value>) -> Vec<String> {
    let attention = policies.iter().flat_map(|policy| policy["status"]["attention"].as_array().into_iter().flatten());
    let attention: BTreeSet<&str> = attention.filter_map(|entry| entry["node"].as_str()).collect();
    let names: BTreeSet<&String> = gpu_nodes.keys().chain(nodes.keys()).collect();
    let rank = |name: &str| {
        let gpu_node = gpu_nodes.get(name);
        let is_ready = gpu_node.is_none_or(|gpu_node| gpu_node["status"]["phase"] == "Ready")
            && nodes.get(name).is_none_or(is_node_ready);
        match (attention.contains(name), gpu_node.is_some(), is_ready) {
            (true, _, _) => 0,
            (false, true, false) => 1,
            (false, true, true) => 2,
            (false, false, _) => 3,
        }
    };
    let mut ordered: Vec<String> = names.into_iter().cloned().collect();
    ordered.sort_by_key(|name| rank(name));
    ordered
}

fn is_node_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    ready.is_some_and(|condition| condition["status"] == "True")
}

/// Returns the part of a Node that is in the bundle: neither its addresses, its images nor other programs' annotations.
pub fn node(node: &Value) -> Value {
    let meta = &node["metadata"];
    let mut metadata = picked(meta, &["name", "uid", "creationTimestamp", "deletionTimestamp", "labels"]);
    let own = meta["annotations"].as_object().into_iter().flatten();
    let own = own.filter(|(key, _)| key.starts_with(keys::PREFIX));
    let own: Map<_, _> = own.map(|(key, value)| (key.clone(), value.clone())).collect();
    metadata.insert("annotations".to_owned(), own.into());
    let spec = picked(&node["spec"], &["taints", "unschedulable"]);
    let status = picked(&node["status"], &["conditions", "nodeInfo", "allocatable", "capacity"]);
    json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status})
}

/// Returns the part of a CustomResourceDefinition that is in the bundle: of the schema of each version only a checksum.
pub fn definition(definition: &Value) -> Value {
    let version = |version: &Value| {
        let mut shown = picked(version, &["name", "served", "storage", "deprecated"]);
        shown.insert("schemaSha256".to_owned(), sha256(version["schema"].to_string().as_bytes()).into());
        Value::from(shown)
    };
    let versions: Vec<Value> = definition["spec"]["versions"].as_array().into_iter().flatten().map(version).collect();
    json!({
        "apiVersion": definition["apiVersion"],
        "kind": definition["kind"],
        "metadata": picked(&definition["metadata"], &["name", "uid", "creationTimestamp", "labels", "annotations"]),
        "spec": {"group": definition["spec"]["group"], "versions": versions},
        "status": picked(&definition["status"], &["conditions", "storedVersions"]),
    })
}

fn picked(value: &Value, fields: &[&str]) -> Map<String, Value> {
    let of = value.as_object().into_iter().flatten();
    of.filter(|(key, _)| fields.contains(&key.as_str())).map(|(key, value)| (key.clone(), value.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_that_need_attention_come_first() {
        let policy = json!({"status": {"attention": [{"node": "z"}, {"node": "gone"}]}});
        let phase = |phase: &str| json!({"status": {"phase": phase}});
        let of = |pairs: Vec<(&str, Value)>| pairs.into_iter().map(|(name, of)| (name.to_owned(), of)).collect();
        let gpu_nodes = of(vec![("a", phase("Ready")), ("b", phase("Failed")), ("c", phase("Ready"))]);
        let ready = |status| json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        let nodes =
            of(vec![("0", ready("False")), ("c", ready("Unknown")), ("z", ready("True")), ("a", ready("True"))]);
        assert_eq!(order(&[policy], &gpu_nodes, &nodes), ["z", "b", "c", "a", "0"]);
        assert_eq!(order(&[], &BTreeMap::new(), &nodes), ["0", "a", "c", "z"]);
    }

    #[test]
    fn nodes_have_only_what_support_needs() {
        let found = node(&json!({
            "metadata": {
                "name": "a",
                "annotations": {"gpu.nodestack.dev/cordon": "x", "example.com/b": "canary"},
                "managedFields": ["canary"],
            },
            "spec": {"providerID": "canary", "unschedulable": true},
            "status": {"addresses": ["canary"], "images": ["canary"], "capacity": {"nvidia.com/gpu": "8"}},
        }));
        let metadata = json!({"name": "a", "annotations": {"gpu.nodestack.dev/cordon": "x"}});
        let (spec, status) = (json!({"unschedulable": true}), json!({"capacity": {"nvidia.com/gpu": "8"}}));
        let shown = json!({"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": spec, "status": status});
        assert_eq!(found, shown);
    }

    #[test]
    fn definitions_have_a_checksum_of_each_schema() {
        let of = |schema: &str| definition(&json!({"spec": {"versions": [{"name": "v1", "schema": schema}]}}));
        let (first, second) = (of("a"), of("b"));
        let checksum = |found: &Value| found["spec"]["versions"][0]["schemaSha256"].as_str().map(str::len);
        assert_eq!(checksum(&first), Some(64));
        assert_ne!(first, second);
    }
}
