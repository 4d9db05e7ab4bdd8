//! A fleet of simulated nodes in the running cluster.
//!
//! The API server, the controller manager and the scheduler are real, so the operator's DaemonSets place real pods on
//! these nodes. What a node itself would do is played: kwok keeps its lease, and an agent in this process is its kubelet
//! and its probe. A node's report, its pods' states and its allocatable GPUs follow from what is placed on it, by the
//! rules of a pure model ([`machine`]). The probe reports only where a pod of the chart's DaemonSet runs.

mod agent;
mod kubelet;
mod machine;
mod node;
mod pod;
mod probe;
mod watches;
mod writes;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use anyhow::{Context, Result, bail};
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

pub use self::{
    agent::Published,
    node::{Behaviour, DriverBehaviour, FleetNode, MEMBER, Stuffing, os},
};
use self::{
    agent::{Agent, Slot},
    node::conditions,
};
use crate::{cluster::Cluster, kwok};

/// Requests side by side.
const AT_ONCE: usize = 16;

/// A fleet. It ends with this value, but its Nodes stay: see [`Fleet::end`].
pub struct Fleet {
    client: Client,
    agent: Arc<Agent>,
    tasks: Vec<JoinHandle<()>>,
}

/// What the fleet knows of one of its nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// The Node's labels.
    pub labels: BTreeMap<String, String>,
    /// Allocatable GPUs, if a plugin has ever run.
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
    /// An empty fleet. Nodes that an earlier one has left are taken away.
    ///
    /// # Errors
    /// If kwok cannot be started, or the API server refuses.
    pub async fn start(cluster: &Cluster) -> Result<Self> {
        let client = cluster.client();
        let (agent, turns) = Agent::new(client.clone());
        let mut tasks = vec![tokio::spawn(Arc::clone(&agent).work(turns))];
        tasks.extend(watches::follow_all(&client, &agent).into_iter().map(tokio::spawn));
        let fleet = Self { client, agent, tasks };
        fleet.clear().await?;
        // It has never seen those of their names that were there before.
        kwok::start_afresh(cluster.paths())?;
        Ok(fleet)
    }

    /// Adds nodes, side by side; returns when the API server has taken all of them.
    ///
    /// # Errors
    /// If one of them is there already, or the API server refuses it.
    pub async fn join(&self, nodes: impl IntoIterator<Item = FleetNode>) -> Result<()> {
        let api = self.nodes();
        let create = |node: FleetNode| {
            let (api, name) = (api.clone(), node.name.clone());
            let object = node.object(Timestamp::now());
            self.enroll(node);
            async move { api.create(&PostParams::default(), &object).await.with_context(|| format!("creating node {name}")) }
        };
        stream::iter(nodes).map(create).buffer_unordered(AT_ONCE).try_for_each(|_| async { Ok(()) }).await
    }

    /// A node of a name that was there before is another machine; pods that are still bound to the name are its own.
    fn enroll(&self, node: FleetNode) {
        let slots = &mut self.agent.state().slots;
        let pods = slots.remove(&node.name).map(|slot| slot.pods).unwrap_or_default();
        slots.insert(node.name.clone(), Slot::new(node, pods));
    }

    /// Takes a node out of the cluster, as when its machine is given back. The controller manager clears its pods away
    /// within a minute or two.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn leave(&self, name: &str) -> Result<()> {
        self.nodes().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    /// Lets a node fall silent: nothing on it moves any more, and it is NotReady as the controller manager makes it then.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn die(&self, name: &str) -> Result<()> {
        self.agent.change(name, |slot| slot.alive = false);
        self.set_ready(name, false).await
    }

    /// Lets a node that fell silent go on where it was.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn revive(&self, name: &str) -> Result<()> {
        self.set_ready(name, true).await?;
        self.agent.change(name, |slot| {
            slot.alive = true;
            slot.forget_what_was_told();
        });
        Ok(())
    }

    async fn set_ready(&self, name: &str, alive: bool) -> Result<()> {
        let patch = json!({"status": {"conditions": conditions(alive, Timestamp::now())}});
        self.nodes().patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await?;
        Ok(())
    }

    /// Marks a node unschedulable, or no longer.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn cordon(&self, name: &str, cordoned: bool) -> Result<()> {
        self.patch(name, json!({"spec": {"unschedulable": cordoned}})).await
    }

    /// Sets labels of a Node; `None` takes one off.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn relabel(&self, name: &str, labels: &[(&str, Option<&str>)]) -> Result<()> {
        let labels: BTreeMap<_, _> = labels.iter().copied().collect();
        self.patch(name, json!({"metadata": {"labels": labels}})).await
    }

    async fn patch(&self, name: &str, patch: serde_json::Value) -> Result<()> {
        self.nodes().patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// Switches a node off and on again, with so many GPUs of its first kind. All its containers start anew.
    pub fn reboot(&self, name: &str, gpus: usize) {
        self.agent.change(name, |slot| {
            let kind = slot.node.gpus.first().cloned().unwrap_or_default();
            slot.node.gpus.resize(gpus, kind);
            slot.machine.reboot(&slot.node);
        });
    }

    /// Changes the facts of a node that runs: its behaviour, a GPU that falls off the bus, a driver that somebody installs
    /// on the host. What only its Node object carries, such as labels, stays as it is.
    pub fn change(&self, name: &str, change: impl FnOnce(&mut FleetNode)) {
        self.agent.change(name, |slot| change(&mut slot.node));
    }

    /// The names of its nodes that are there.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        let state = self.agent.state();
        state.slots.iter().filter(|(_, slot)| slot.present).map(|(name, _)| name.clone()).collect()
    }

    /// What it knows of a node that is there.
    #[must_use]
    pub fn observe(&self, name: &str) -> Option<Observed> {
        let state = self.agent.state();
        state.slots.get(name).filter(|slot| slot.present).map(observed)
    }

    /// Every change of a Node's allocatable GPUs so far, in order.
    #[must_use]
    pub fn published(&self) -> Vec<Published> {
        self.agent.state().published.clone()
    }

    /// Waits until every node that is there passes a check.
    ///
    /// # Errors
    /// After `deadline`, how many did not, and one of them.
    pub async fn until(&self, what: &str, deadline: Duration, check: impl Fn(&str, &Observed) -> bool) -> Result<()> {
        // How many, and one of them.
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
            let Some((left, one)) = failing() else { return Ok(()) };
            let told = tokio::time::timeout_at(end, activity.changed()).await;
            if told.is_err() {
                bail!("{what}: not within {} s of {left} nodes, such as {one}", deadline.as_secs());
            }
            // Events come in floods.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until nothing has happened for so long: to the nodes, their pods, their GpuNodes, any policy or DaemonSet.
    /// Gives the moment of the last thing that did.
    ///
    /// # Errors
    /// If it is not quiet by `deadline` from now.
    pub async fn quiet(&self, quiet: Duration, deadline: Duration) -> Result<Instant> {
        let mut activity = self.agent.activity();
        let began = Instant::now();
        let end = began + deadline;
        loop {
            let last = *activity.borrow_and_update();
            // What has just been asked for may not have begun to show.
            let silence = last.max(began) + quiet;
            if Instant::now() >= silence && self.agent.is_idle() {
                return Ok(last);
            }
            if Instant::now() > end {
                let error = self.agent.state().error.clone().unwrap_or_else(|| "none".to_owned());
                bail!("not quiet within {} s; the agent's last error: {error}", deadline.as_secs());
            }
            // Nodes that are busy by the clock alone tell when they are done; until then silence means nothing.
            let wait = silence.saturating_duration_since(Instant::now()).max(Duration::from_millis(100));
            let _ = tokio::time::timeout(wait, activity.changed()).await;
        }
    }

    /// Takes all nodes away, and what is left of them.
    ///
    /// # Errors
    /// If the API server refuses.
    pub async fn end(self) -> Result<()> {
        self.clear().await
    }

    async fn clear(&self) -> Result<()> {
        let members = ListParams::default().labels(&format!("{}={}", MEMBER.0, MEMBER.1));
        let names: Vec<String> =
            self.nodes().list_metadata(&members).await?.items.iter().map(ResourceExt::name_any).collect();
        // From here on nobody speaks for them any more.
        self.agent.state().slots.clear();
        self.nodes().delete_collection(&DeleteParams::background(), &members).await?;
        // Nobody else ends their pods, and the controller manager lets a minute pass before it does.
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
            async move { gone_is_fine(api.delete(&pod.name_any(), &now).await) }
        };
        stream::iter(on_them).map(end).buffer_unordered(AT_ONCE).try_for_each(|()| async { Ok(()) }).await?;
        let gpu_nodes = Api::<PartialObjectMeta<GpuNode>>::all(self.client.clone());
        let forget = |name: String| {
            let gpu_nodes = gpu_nodes.clone();
            async move { gone_is_fine(gpu_nodes.delete(&name, &DeleteParams::default()).await) }
        };
        stream::iter(names).map(forget).buffer_unordered(AT_ONCE).try_for_each(|()| async { Ok(()) }).await
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }
}

fn observed(slot: &Slot) -> Observed {
    let pods = slot.pods.values().map(|pod| pod.name.clone()).collect();
    Observed { labels: slot.labels.clone(), gpus: slot.gpus(), pods }
}

fn gone_is_fine<T>(outcome: kube::Result<T>) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        outcome => {
            outcome?;
            Ok(())
        }
    }
}
