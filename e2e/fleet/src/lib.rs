//! A fleet of simulated nodes in the running cluster.
//!
//! The API server, the controller manager and the scheduler are real, so the operator's DaemonSets place real pods on these
//! nodes. The nodes themselves are simulated: kwok renews their leases, and an agent in this process acts as their kubelet and
//! probe. A node's report, the states of its pods and its allocatable GPUs follow from the pods on it, by the rules of the model of
//! the plan's tests ([`test_support::sim`]). Detector and probe work only where pods of the chart's DaemonSets run.

mod agent;
mod node;
mod pod;
mod slot;
mod watches;
mod writes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
use cluster::kwok;
use cluster_client::{handle::Cluster, ignore_not_found};
use futures::{StreamExt, TryStreamExt, stream};
use gpu_operator_crd::GpuNode;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
    core::PartialObjectMeta,
};
use serde_json::json;
use tokio::{task::JoinHandle, time::Instant};

use self::{agent::Agent, node::conditions, slot::Slot};
pub use self::{
    agent::Published,
    node::{FleetNode, MEMBER_LABEL, Padding, os},
};

/// The maximum number of concurrent requests.
const MAX_CONCURRENT_REQUESTS: usize = 16;

/// A fleet. It ends when this value is dropped, but its Nodes stay: see [`Fleet::end`].
pub struct Fleet {
    client: Client,
    agent: Arc<Agent>,
    tasks: Vec<JoinHandle<()>>,
}

/// The state of one of the fleet's nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The Node's labels.
    pub labels: BTreeMap<String, String>,
    /// The allocatable GPUs; `None` if a plugin has never run.
    pub gpus: Option<u32>,
    /// The names of the pods on it.
    pub pods: Vec<String>,
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

impl Fleet {
    /// Starts an empty fleet, and removes the Nodes of an earlier one.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let client = cluster.client();
        let (agent, turns) = Agent::new(client.clone());
        let mut tasks = vec![tokio::spawn(Arc::clone(&agent).work(turns))];
        tasks.extend(watches::all(&client, &agent).into_iter().map(tokio::spawn));
        let fleet = Self { client, agent, tasks };
        fleet.clear().await?;
        // The new process has not seen earlier Nodes of the same names.
        kwok::restart(cluster.paths())?;
        Ok(fleet)
    }

    /// Adds nodes concurrently; returns when the API server has accepted all of them.
    pub async fn join(&self, nodes: impl IntoIterator<Item = FleetNode>) -> Result<()> {
        let api = self.nodes();
        let create = |node: FleetNode| {
            let (api, name) = (api.clone(), node.name.clone());
            let object = node.object(Timestamp::now());
            self.add_slot(node);
            async move { api.create(&PostParams::default(), &object).await.with_context(|| format!("creating node {name}")) }
        };
        stream::iter(nodes)
            .map(create)
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .try_for_each(|_| async { Ok(()) })
            .await
    }

    /// Adds a slot for a node. If a node of that name existed before, this is another machine, but it gets the pods that are
    /// still bound to the name.
    fn add_slot(&self, node: FleetNode) {
        let slots = &mut self.agent.state().slots;
        let pods = slots.remove(&node.name).map(|slot| slot.pods).unwrap_or_default();
        slots.insert(node.name.clone(), Slot::new(node, pods));
    }

    /// Deletes a node, as when its machine is returned to the cloud. The controller manager deletes its pods within a minute
    /// or two.
    pub async fn leave(&self, name: &str) -> Result<()> {
        self.nodes().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Stops a node: nothing changes on it any more, and it is NotReady, as the controller manager marks it then.
    pub async fn die(&self, name: &str) -> Result<()> {
        self.agent.change(name, |slot| slot.alive = false);
        self.set_ready(name, false).await
    }

    /// Lets a stopped node continue.
    pub async fn revive(&self, name: &str) -> Result<()> {
        self.set_ready(name, true).await?;
        self.agent.change(name, |slot| {
            slot.alive = true;
            slot.forget_written();
        });
        Ok(())
    }

    async fn set_ready(&self, name: &str, alive: bool) -> Result<()> {
        let patch = json!({"status": {"conditions": conditions(alive, Timestamp::now())}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// Cordons or uncordons a node.
    pub async fn cordon(&self, name: &str, cordoned: bool) -> Result<()> {
        self.patch(name, json!({"spec": {"unschedulable": cordoned}})).await
    }

    /// Sets labels of a Node; `None` removes a label.
    pub async fn relabel(&self, name: &str, labels: &[(&str, Option<&str>)]) -> Result<()> {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        self.patch(name, json!({"metadata": {"labels": labels}})).await
    }

    async fn patch(&self, name: &str, patch: serde_json::Value) -> Result<()> {
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Reboots a node, with `lost` GPUs missing afterwards. All its containers start again.
    pub fn reboot(&self, name: &str, lost: usize) {
        self.agent.change(name, |slot| slot.sim.reboot(name, lost));
    }

    /// Changes the faults of a running node and the health of its GPUs. Other fields have no effect any more.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut FleetNode)) {
        self.agent.change(name, |slot| change(&mut slot.node));
    }

    /// Returns the names of the existing nodes.
    pub fn names(&self) -> Vec<String> {
        let state = self.agent.state();
        state.slots.iter().filter(|(_, slot)| slot.present).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the state of a node, if it exists.
    pub fn observe(&self, name: &str) -> Option<Observed> {
        let state = self.agent.state();
        state.slots.get(name).filter(|slot| slot.present).map(observed)
    }

    /// Returns all changes of Nodes' allocatable GPUs so far, in order.
    pub fn published(&self) -> Vec<Published> {
        self.agent.state().published.clone()
    }

    /// Waits until every existing node passes a check. `what` names the expected state.
    pub async fn until(&self, what: &str, deadline: Duration, check: impl Fn(&str, &Observed) -> bool) -> Result<()> {
        // The number of failing nodes, and one of them.
        let failing = || {
            let state = self.agent.state();
            let present = state.slots.iter().filter(|(_, slot)| slot.present);
            let mut failing =
                present.map(|(name, slot)| (name, observed(slot))).filter(|(name, node)| !check(name, node));
            let (name, node) = failing.next()?;
            Some((1 + failing.count(), format!("{name}: {node:?}")))
        };
        let mut activity = self.agent.activity();
        let end = Instant::now() + deadline;
        loop {
            let Some((count, example)) = failing() else { return Ok(()) };
            if tokio::time::timeout_at(end, activity.changed()).await.is_err() {
                bail!("{what}: {count} nodes failed within {} s, such as {example}", deadline.as_secs());
            }
            // Changes come in bursts.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until nodes, their pods and GpuNodes, policies and DaemonSets have not changed for `quiet`. Returns the time of
    /// the last change.
    pub async fn quiet(&self, quiet: Duration, deadline: Duration) -> Result<Instant> {
        let mut activity = self.agent.activity();
        let began = Instant::now();
        let end = began + deadline;
        loop {
            let last = *activity.borrow_and_update();
            // The caller's last change may not have had an effect yet.
            let silence = last.max(began) + quiet;
            if Instant::now() >= silence && self.agent.is_idle() {
                return Ok(last);
            }
            if Instant::now() > end {
                let error = self.agent.state().error.clone().unwrap_or_else(|| "none".to_owned());
                bail!("not quiet within {} s; the agent's last error: {error}", deadline.as_secs());
            }
            // While a node waits for time to pass, silence means nothing; its next turn is an activity.
            let wait = silence.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
            let _ = tokio::time::timeout(wait, activity.changed()).await;
        }
    }

    /// Deletes all nodes, their pods and their GpuNodes.
    pub async fn end(self) -> Result<()> {
        self.clear().await
    }

    async fn clear(&self) -> Result<()> {
        let members = ListParams::default().labels(&format!("{}={}", MEMBER_LABEL.0, MEMBER_LABEL.1));
        let names: Vec<String> =
            self.nodes().list_metadata(&members).await?.items.iter().map(ResourceExt::name_any).collect();
        // From here on the agent writes nothing for them.
        self.agent.state().slots.clear();
        self.nodes().delete_collection(&DeleteParams::background(), &members).await?;
        // Without a kubelet only the controller manager ends their pods, and only after a minute.
        let on_them = Api::<Pod>::all(self.client.clone()).list(&ListParams::default()).await?.items.into_iter();
        let on_them = on_them.filter(|pod| {
            let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
            node.is_some_and(|node| names.contains(node))
        });
        let now = DeleteParams::default().grace_period(0);
        let end = |pod: Pod| {
            let api =
                Api::<PartialObjectMeta<Pod>>::namespaced(self.client.clone(), &pod.namespace().unwrap_or_default());
            let now = now.clone();
            async move { ignore_not_found(api.delete(&pod.name_any(), &now).await) }
        };
        stream::iter(on_them)
            .map(end)
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .try_for_each(|()| async { Ok(()) })
            .await?;
        let gpu_nodes = Api::<PartialObjectMeta<GpuNode>>::all(self.client.clone());
        let delete = |name: String| {
            let gpu_nodes = gpu_nodes.clone();
            async move { ignore_not_found(gpu_nodes.delete(&name, &DeleteParams::default()).await) }
        };
        stream::iter(names)
            .map(delete)
            .buffer_unordered(MAX_CONCURRENT_REQUESTS)
            .try_for_each(|()| async { Ok(()) })
            .await
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }
}

fn observed(slot: &Slot) -> Observed {
    let pods = slot.pods.values().map(|pod| pod.id.name.clone()).collect();
    Observed { labels: slot.labels.clone(), gpus: slot.gpus(), pods }
}
