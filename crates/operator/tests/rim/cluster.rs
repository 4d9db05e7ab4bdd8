//! A cluster around the API server: the operator as its binary runs it, and the simulator's DaemonSet controller, kubelets and
//! probes, which see what the API server stores and write what they change.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpu_operator::{
    election::{Election, Leadership},
    metrics::Metrics,
    reconcile::Loop,
    watch::Mirrors,
};
use gpu_operator_crd::{GpuNode, NodeName};
use gpu_operator_plan::{
    catalogue::Catalogue,
    world::{NodeFacts, PodFacts, TrimmedNode},
};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};
use test_api_server::{Api, clock, merge};
use tokio::{
    task::LocalSet,
    time::{sleep, timeout},
};

use crate::sim::{Sim, pod_json::json_of_pod};

pub const NODES: &str = "/api/v1/nodes";
pub const PODS: &str = "/api/v1/namespaces/gpu-operator/pods";
pub const SETS: &str = "/apis/apps/v1/namespaces/gpu-operator/daemonsets";
pub const CLASSES: &str = "/apis/node.k8s.io/v1/runtimeclasses";
pub const GPU_NODES: &str = "/apis/gpu.nodestack.dev/v1alpha1/gpunodes";
pub const POLICIES: &str = "/apis/gpu.nodestack.dev/v1alpha1/clustergpupolicies";

/// How long an answer takes, and an event of a watch.
const LATENCY: Duration = Duration::from_millis(5);

/// An operator in a cluster of nodes with eight H100 each, under a policy `all`.
pub struct Cluster {
    pub api: Api,
    tasks: LocalSet,
}

impl Cluster {
    /// Creates the cluster, in which nothing runs yet.
    pub fn new(nodes: usize) -> (Self, Sim) {
        let mut sim = Sim::new().policy("all", "{}");
        sim.now = clock();
        for node in 0..nodes {
            sim.join(format!("n{node:03}"), "2330", 8);
        }
        let api = Api::with_latency(LATENCY);
        store(&api, &sim);
        (Self { api, tasks: LocalSet::new() }, sim)
    }

    /// Creates a cluster in which everything runs.
    pub fn running(nodes: usize) -> Self {
        let (cluster, sim) = Self::new(nodes);
        cluster.start_operator(&sim);
        cluster.run_surroundings(sim);
        cluster
    }

    /// Lets the simulator's kubelets, probes and controllers act from now on.
    pub fn run_surroundings(&self, sim: Sim) {
        self.spawn(surroundings(self.api.clone(), sim));
    }

    /// Runs a task until the cluster is dropped.
    pub fn spawn(&self, task: impl Future<Output = ()> + 'static) {
        self.tasks.spawn_local(task);
    }

    /// Returns the same cluster with tasks of its own, which end before the others.
    pub fn beside(&self) -> Self {
        Self { api: self.api.clone(), tasks: LocalSet::new() }
    }

    /// Lets everything run until this has ended.
    pub async fn run_until<T>(&self, work: impl Future<Output = T>) -> T {
        self.tasks.run_until(work).await
    }

    /// Lets everything run for some time.
    pub async fn run_for(&self, time: Duration) {
        self.tasks.run_until(sleep(time)).await;
    }

    /// Starts the only operator, and returns its metrics.
    pub fn start_operator(&self, sim: &Sim) -> Arc<Metrics> {
        self.start(sim, &self.api.client_of(""), Leadership::sole(), Arc::new(Mirrors::new(clock)))
    }

    /// Starts one of several operators.
    pub fn start_replica(&self, sim: &Sim, name: &'static str) {
        let client = self.api.client_of(name);
        let mut election = Election::new(client.clone(), &sim.settings.namespace, "operator", name);
        let leadership = election.leadership();
        let mirrors = Arc::new(Mirrors::new(clock));
        let known = Arc::clone(&mirrors);
        self.spawn(async move { election.run(|| known.may_lead()).await });
        self.start(sim, &client, leadership, mirrors);
    }

    /// Starts the watches, the publisher of Events and the reconcile loop.
    fn start(&self, sim: &Sim, client: &Client, leadership: Leadership, mirrors: Arc<Mirrors>) -> Arc<Metrics> {
        let catalogue = Catalogue::builtin().expect("a valid catalogue");
        let (reconcile, tasks) = Loop::new(client, sim.settings.clone(), catalogue, leadership, mirrors);
        for task in tasks {
            self.spawn(task);
        }
        let metrics = Arc::clone(&reconcile.metrics);
        self.spawn(reconcile.run());
        metrics
    }

    /// Lets another manager change an object whenever it does not look as this manager wants it to.
    pub fn revert(&self, manager: &'static str, path: &str, change: fn(&mut Value)) {
        let (api, path) = (self.api.clone(), path.to_owned());
        self.spawn(async move {
            loop {
                api.write(manager, &path, change);
                api.changed().await;
                sleep(Duration::from_secs(5)).await;
            }
        });
    }

    /// Lets a user ask for a label of the nodes.
    pub fn publish_label(&self) {
        self.api.write("kubectl", &format!("{POLICIES}/all"), |policy| {
            policy["spec"]["nodeLabels"] = json!([{"key": "accelerator"}]);
        });
    }

    /// Returns status, reason and message of a condition of an object.
    pub fn condition(&self, path: &str, kind: &str) -> (String, String, String) {
        let object = self.api.get(path);
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let condition = conditions.into_iter().find(|condition| condition["type"] == kind).unwrap_or_default();
        let text = |key: &str| condition[key].as_str().unwrap_or_default().to_owned();
        (text("status"), text("reason"), text("message"))
    }

    /// Returns the status of the policy.
    pub fn policy(&self) -> String {
        self.api.get(&format!("{POLICIES}/all"))["status"].to_string()
    }

    /// Returns whether the policy is ready.
    pub fn is_ready(&self) -> bool {
        self.condition(&format!("{POLICIES}/all"), "Ready").0 == "True"
    }
}

/// Takes steps of the simulator while something changes.
async fn surroundings(api: Api, mut sim: Sim) {
    loop {
        sleep(Duration::from_secs(1)).await;
        observe(&api, &mut sim);
        let changed = sim.surroundings();
        store(&api, &sim);
        if !changed {
            let _ = timeout(Duration::from_mins(1), api.changed()).await;
        }
    }
}

/// Shows the simulator what the API server stores.
fn observe(api: &Api, sim: &mut Sim) {
    let nodes = api.all::<TrimmedNode>(NODES).into_iter().map(|node| NodeFacts::of(&node));
    sim.now = clock();
    sim.nodes = nodes.map(|node| (node.name.clone(), node)).collect();
    sim.gpu_nodes = api
        .all::<GpuNode>(GPU_NODES)
        .into_iter()
        .map(|node| (NodeName::from(node.name_any().as_str()), node))
        .collect();
    sim.sets = api.all::<DaemonSet>(SETS).into_iter().map(|set| (set.name_any(), set)).collect();
    let pods = api.all::<Pod>(PODS).into_iter().filter_map(|pod| PodFacts::of(&pod));
    sim.pods = pods.map(|pod| (pod.name.clone(), pod)).collect();
}

/// Stores what the simulator's programs and users write.
pub fn store(api: &Api, sim: &Sim) {
    for (name, policy) in &sim.policies {
        let path = format!("{POLICIES}/{name}");
        if api.get(&path).is_null() {
            api.write("kubectl", &path, |object| *object = json!(policy));
        }
    }
    for (name, node) in &sim.nodes {
        api.write("kubelet", &format!("{NODES}/{name}"), |object| merge(object, &json_of_node(node)));
    }
    for (name, gpu_node) in &sim.gpu_nodes {
        api.write("nvml-probe", &format!("{GPU_NODES}/{name}"), |object| {
            if object.is_null() {
                *object = json!(gpu_node);
            }
            object["status"]["report"] = json!(gpu_node.status.as_ref().and_then(|status| status.report.as_ref()));
        });
    }
    let gone = api.all::<Pod>(PODS).into_iter().map(|pod| pod.name_any()).filter(|name| !sim.pods.contains_key(name));
    gone.for_each(|name| api.delete(&format!("{PODS}/{name}")));
    for (name, pod) in &sim.pods {
        api.write("kubelet", &format!("{PODS}/{name}"), |object| merge(object, &json_of_pod(pod)));
    }
}

fn json_of_node(node: &NodeFacts) -> Value {
    let offered = &node.allocatable;
    let amounts: BTreeMap<_, _> =
        offered.names().map(|name| (name.to_string(), offered.amount(name).to_string())).collect();
    let status = if node.ready { "True" } else { "False" };
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"uid": node.uid, "labels": node.labels, "creationTimestamp": node.created},
        "status": {
            "conditions": [{"type": "Ready", "status": status}],
            "capacity": amounts, "allocatable": amounts,
            "nodeInfo": {
                "architecture": node.arch, "bootID": node.boot_id, "containerRuntimeVersion": node.runtime,
                "kernelVersion": node.kernel, "kubeletVersion": node.kubelet,
            },
        },
    })
}
