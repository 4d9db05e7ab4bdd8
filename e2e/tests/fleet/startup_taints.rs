//! Nodes that register with a startup taint: no pod starts on one of them before it is ready, and none waits for long afterwards.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    pin::pin,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use cluster::clients::OPERATOR;
use fleet::{FleetNode, MEMBER_LABEL};
use futures::StreamExt;
use gpu_operator_crd::{GpuNode, GpuNodeStatus, keys};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
    runtime::{WatchStreamExt, watcher, watcher::Config},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::support::{DEADLINE, Fixture, test};

const NODES: usize = 100;
/// The number of nodes that join one after another, once the others are ready.
const LATER_NODES: usize = 5;
const GPUS: u32 = 8;
/// The label of the pods that wait, one with and one without a GPU for each node.
const WAITS: &str = "fleet.example.com/waits";
/// Operands tolerate the startup taint although their tolerations are listed.
const POLICY: &str = "{readiness: {startupTaint: {}, nodeCondition: true}, defaults: {tolerations: []}}";

/// A state of an object, and the time at which the watch reported it. Resource versions are numbers that all kinds share.
struct State<K> {
    at: Instant,
    version: u64,
    object: K,
}

/// All states of some objects.
struct History<K> {
    states: Arc<Mutex<Vec<State<K>>>>,
    task: JoinHandle<()>,
}

impl<K> History<K>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    fn of(api: Api<K>, labels: Option<&str>) -> Self {
        let states = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&states);
        let config = labels.map_or_else(Config::default, |labels| Config::default().labels(labels));
        let task = tokio::spawn(async move {
            let mut objects = pin!(watcher(api, config).default_backoff().applied_objects());
            while let Some(object) = objects.next().await {
                let version = |object: &K| object.resource_version()?.parse().ok();
                if let Some((version, object)) = object.ok().and_then(|object| Some((version(&object)?, object))) {
                    kept.lock().expect("the list").push(State { at: Instant::now(), version, object });
                }
            }
        });
        Self { states, task }
    }

    /// Returns version and time of the first state of each object that passes a test, by a name.
    fn first(
        &self,
        name: impl Fn(&K) -> Option<String>,
        test: impl Fn(&K) -> bool,
    ) -> BTreeMap<String, (u64, Instant)> {
        let mut first = BTreeMap::new();
        for state in self.states.lock().expect("the list").iter().filter(|state| test(&state.object)) {
            if let Some(name) = name(&state.object) {
                first.entry(name).or_insert((state.version, state.at));
            }
        }
        first
    }
}

impl<K> Drop for History<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn node(index: usize) -> FleetNode {
    let mut node = FleetNode::with_gpus(&format!("start{index:03}"), "2330", GPUS as usize);
    let effect = if index.is_multiple_of(3) { "NoExecute" } else { "NoSchedule" };
    let taint = Taint { key: keys::STARTUP_TAINT.into(), effect: effect.into(), ..Taint::default() };
    node.taints = vec![taint];
    node.faults.slow = i64::try_from(index % 4).unwrap_or_default();
    node
}

/// Returns a pod for a node that tolerates nothing.
fn pod(node: &str, uses_gpu: bool) -> Result<Pod> {
    let limits = if uses_gpu { json!({keys::GPU_RESOURCE: 1}) } else { json!({"cpu": 1}) };
    let kind = if uses_gpu { "gpu" } else { "plain" };
    let container = json!({"name": "main", "image": "registry.example.com/none:1", "resources": {"limits": limits}});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": format!("waits-{kind}-{node}"), "labels": {WAITS: kind}},
        "spec": {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]},
    }))?)
}

fn is_tainted(node: &Node) -> bool {
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
    taints.into_iter().flatten().any(|taint| taint.key == keys::STARTUP_TAINT)
}

fn offers_all(node: &Node) -> bool {
    let offered = node.status.as_ref().and_then(|status| status.allocatable.as_ref()?.get(keys::GPU_RESOURCE));
    offered.is_some_and(|offered| offered.0 == GPUS.to_string())
}

fn condition(node: &Node) -> Option<&str> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    Some(&conditions.iter().find(|condition| condition.type_ == keys::READY_CONDITION)?.status)
}

/// Returns the name of the node to which a pod is bound.
fn bound_to(pod: &Pod) -> Option<String> {
    pod.spec.as_ref()?.node_name.clone()
}

#[test]
fn pods_start_once_their_node_is_ready_and_at_once() {
    test(|f| async move {
        let names: Vec<_> = (0..NODES).map(|index| node(index).name).collect();
        let pods = Api::<Pod>::default_namespaced(f.cluster.client());
        let waiting = ListParams::default().labels(WAITS);
        pods.delete_collection(&DeleteParams::default().grace_period(0), &waiting).await?;
        f.apply(POLICY).await?;
        let member = format!("{}={}", MEMBER_LABEL.0, MEMBER_LABEL.1);
        let of_nodes = History::of(Api::<Node>::all(f.cluster.client()), Some(&member));
        let of_gpu_nodes = History::of(f.gpu_nodes(), None);
        let of_pods = [true, false].map(|uses_gpu| {
            let label = format!("{WAITS}={}", if uses_gpu { "gpu" } else { "plain" });
            History::of(pods.clone(), Some(&label))
        });
        for name in &names {
            for uses_gpu in [true, false] {
                pods.create(&PostParams::default(), &pod(name, uses_gpu)?).await?;
            }
        }
        let mark = f.cluster.audit().mark()?;
        let began = Instant::now();
        f.fleet.join((0..NODES).map(node)).await?;
        eventually(DEADLINE, "all pods on their nodes", || async {
            let bound = of_pods.each_ref().map(|pods| pods.first(bound_to, |_| true).len());
            ensure!(bound == [NODES; 2], "bound with and without GPU: {bound:?} of {NODES}");
            Ok(())
        })
        .await?;
        println!("{NODES} nodes joined, and all pods were bound, within {:.1} s", began.elapsed().as_secs_f64());
        let published = of_nodes.first(|node| Some(node.name_any()), offers_all);
        let lifted = of_nodes.first(|node| Some(node.name_any()), |node| !is_tainted(node));
        let is_ready = |gpu_node: &GpuNode| gpu_node.status.as_ref().is_some_and(GpuNodeStatus::is_ready);
        let reported = of_gpu_nodes.first(|gpu_node| Some(gpu_node.name_any()), is_ready);
        let bound = of_pods.each_ref().map(|pods| pods.first(bound_to, |_| true));
        let (mut lifts, mut binds) = (Vec::new(), Vec::new());
        for name in &names {
            let ready = published.get(name).with_context(|| format!("{name} offers no GPUs"))?;
            let lift = lifted.get(name).with_context(|| format!("{name} keeps its taint"))?;
            ensure!(lift.0 > ready.0, "{name} lost its taint at {}, and was ready at {}", lift.0, ready.0);
            lifts.push(lift.1.saturating_duration_since(ready.1));
            // The lift is the first of the writes that follow from the node being ready.
            let status = reported.get(name);
            ensure!(status.is_none_or(|status| lift.0 < status.0), "{name}: the status was written before the lift");
            for bound in &bound {
                let bound = bound.get(name).context("not bound")?;
                ensure!(
                    bound.0 > lift.0,
                    "a pod was bound to {name} at {}, and the taint was there until {}",
                    bound.0,
                    lift.0
                );
                binds.push(bound.1.saturating_duration_since(lift.1));
            }
        }
        print_seconds("from Ready to the end of the taint", &mut lifts);
        // The scheduler delays its next attempt for a pod that it could not place, by up to ten seconds.
        print_seconds("from the end of the taint to a bound pod", &mut binds);
        each_node_costs_few_writes(&f, &of_nodes, &names, mark).await?;
        let mut lifts = Vec::new();
        for index in NODES..NODES + LATER_NODES {
            lifts.push(lift_of_one(&f, &of_nodes, node(index)).await?);
        }
        print_seconds("from Ready to the end of the taint, of nodes one after another", &mut lifts);
        pods.delete_collection(&DeleteParams::default().grace_period(0), &waiting).await?;
        Ok(f)
    });
}

/// Adds a node, and returns the time from Ready to the end of its taint.
async fn lift_of_one(f: &Fixture, nodes: &History<Node>, node: FleetNode) -> Result<Duration> {
    let name = node.name.clone();
    let first = |test: fn(&Node) -> bool| {
        let named = |node: &Node| Some(node.name_any()).filter(|other| *other == name);
        nodes.first(named, test).remove(&name)
    };
    f.fleet.join([node]).await?;
    eventually(DEADLINE, "the end of the taint", || async {
        first(|node| !is_tainted(node)).context("it is there").map(drop)
    })
    .await?;
    let (ready, lift) = first(offers_all).zip(first(|node| !is_tainted(node))).context("it offers no GPUs")?;
    ensure!(lift.0 > ready.0, "{name} lost its taint at {}, and was ready at {}", lift.0, ready.0);
    Ok(lift.1.saturating_duration_since(ready.1))
}

fn print_seconds(what: &str, waits: &mut [Duration]) {
    waits.sort_unstable();
    let at = |share: usize| waits[(waits.len() - 1) * share / 100].as_secs_f64();
    println!("seconds {what}: median {:.2}, 99 % {:.2}, longest {:.2}", at(50), at(99), at(100));
}

/// Checks that all nodes report that they are ready, and at what cost.
async fn each_node_costs_few_writes(
    f: &Fixture,
    nodes: &History<Node>,
    names: &[String],
    mark: cluster_client::audit::Mark,
) -> Result<()> {
    eventually(DEADLINE, "condition GpuReady of all nodes", || async {
        let ready = nodes.first(|node| Some(node.name_any()), |node| condition(node) == Some("True"));
        ensure!(ready.len() == names.len(), "{} of {}", ready.len(), names.len());
        Ok(())
    })
    .await?;
    let writes = f.cluster.audit().requests(OPERATOR, mark)?.writes();
    let most = |resource: &str| {
        let by_name = writes.only(|request| request.resource == resource).by_name();
        by_name.into_values().max().unwrap_or_default()
    };
    let (of_status, of_node) = (most("nodes/status"), most("nodes"));
    println!("most writes of one node: {of_status} of its conditions, {of_node} of its labels and taints");
    ensure!(of_status <= 3, "{of_status} writes of the conditions of a node");
    Ok(())
}
