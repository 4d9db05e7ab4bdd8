//! The history of a fleet: every stored version of its policy, of GpuNodes and of its Nodes, in the order in which the API server stored them. A
//! resource version is a number that all kinds share, so the states of the cluster can be replayed although watches of different kinds
//! are not ordered against each other.

use std::{
    collections::BTreeMap,
    fmt::Debug,
    pin::pin,
    sync::{Arc, Mutex},
};

use anyhow::{Context, Result, ensure};
use fleet::MEMBER_LABEL;
use futures::StreamExt;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys, policy_status::Slot};
use harness::wait::eventually;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Resource, ResourceExt,
    runtime::{
        WatchStreamExt,
        watcher::{Config, Event, watcher},
    },
};
use serde::de::DeserializeOwned;
use tokio::task::JoinHandle;

use crate::support::{DEADLINE, Fixture, POLICY};

/// What the laws of a rollout need to know of the cluster.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The slots in the ledger of the policy, by node.
    pub slots: BTreeMap<String, Slot>,
    pub gpu_nodes: BTreeMap<String, Turn>,
    pub nodes: BTreeMap<String, Availability>,
}

/// The update of a node, from its GpuNode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    pub uid: String,
    pub number: u32,
    /// Whether the update is in progress.
    pub is_current: bool,
}

/// Whether pods can use the GPUs of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub struct Availability {
    pub ready: bool,
    pub cordoned: bool,
    /// Whether the operator has recorded that the cordon is its own.
    pub has_own_cordon: bool,
    pub gpus: bool,
    /// Whether it has ever had allocatable GPUs.
    pub had_gpus: bool,
}

impl Availability {
    /// Returns whether others have cordoned the node.
    pub fn is_cordoned_by_others(&self) -> bool {
        self.cordoned && !self.has_own_cordon
    }

    /// Returns whether pods that could use its GPUs cannot any more.
    pub fn is_unavailable(&self) -> bool {
        self.had_gpus && (!self.ready || self.cordoned || !self.gpus)
    }
}

/// An object whose versions are recorded.
trait Recorded: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static {
    /// Updates the state after the object was created or changed.
    fn apply(&self, state: &mut State);
    /// Updates the state after the object was deleted.
    fn remove(&self, state: &mut State);
}

impl Recorded for ClusterGpuPolicy {
    fn apply(&self, state: &mut State) {
        let Some(status) = &self.status else { return };
        state.slots = status.rollout.slots.iter().map(|slot| (slot.node.to_string(), slot.clone())).collect();
    }

    fn remove(&self, state: &mut State) {
        state.slots.clear();
    }
}

impl Recorded for GpuNode {
    fn apply(&self, state: &mut State) {
        let (uid, is_current) = (self.uid().unwrap_or_default(), self.spec.rollout.is_some());
        state.gpu_nodes.insert(self.name_any(), Turn { uid, number: self.spec.updates_begun, is_current });
    }

    fn remove(&self, state: &mut State) {
        state.gpu_nodes.remove(&self.name_any());
    }
}

impl Recorded for Node {
    fn apply(&self, state: &mut State) {
        let status = self.status.as_ref();
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let gpus = status.and_then(|status| status.allocatable.as_ref()?.get(keys::GPU_RESOURCE));
        let gpus = gpus.is_some_and(|gpus| gpus.0 != "0");
        let before = state.nodes.entry(self.name_any()).or_default();
        *before = Availability {
            ready: conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            cordoned: self.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
            has_own_cordon: self.annotations().contains_key(keys::CORDON),
            gpus,
            had_gpus: before.had_gpus || gpus,
        };
    }

    fn remove(&self, state: &mut State) {
        state.nodes.remove(&self.name_any());
    }
}

/// The recorded versions of one kind.
struct Log {
    versions: Arc<Mutex<Versions>>,
    task: JoinHandle<()>,
}

type Change = Box<dyn FnOnce(&mut State) + Send>;

#[derive(Default)]
struct Versions {
    /// The changes and their resource versions.
    changes: Vec<(u64, String, Change)>,
    /// How often all objects have been listed. A second list means that versions are missing.
    lists: usize,
}

impl Log {
    fn of<K: Recorded>(api: Api<K>, config: Config) -> Self {
        let versions = Arc::new(Mutex::new(Versions::default()));
        let kept = Arc::clone(&versions);
        let task = tokio::spawn(async move {
            let mut events = pin!(watcher(api, config).default_backoff());
            while let Some(event) = events.next().await {
                let mut kept = kept.lock().expect("the list");
                match event {
                    Ok(Event::InitApply(object) | Event::Apply(object)) => {
                        let (version, name) = identity(&object);
                        kept.changes.push((version, name, Box::new(move |state| object.apply(state))));
                    }
                    Ok(Event::Delete(object)) => {
                        let (version, name) = identity(&object);
                        kept.changes.push((version, name, Box::new(move |state| object.remove(state))));
                    }
                    Ok(Event::InitDone) => kept.lists += 1,
                    Ok(Event::Init) | Err(_) => {}
                }
            }
        });
        Self { versions, task }
    }
}

fn identity<K: Recorded>(object: &K) -> (u64, String) {
    let version = object.resource_version().and_then(|version| version.parse().ok());
    (version.unwrap_or_default(), format!("{} {}", K::kind(&()), object.name_any()))
}

/// Records the versions of all objects from its creation to its end.
pub struct History {
    logs: [Log; 3],
}

impl History {
    /// Begins a history, with the current state as its first one.
    pub async fn begin(f: &Fixture) -> Result<Self> {
        let policy = Config::default().fields(&format!("metadata.name={POLICY}"));
        let members = Config::default().labels(&format!("{}={}", MEMBER_LABEL.0, MEMBER_LABEL.1));
        let nodes = Api::<Node>::all(f.cluster.client());
        let logs = [Log::of(f.policies(), policy), Log::of(f.gpu_nodes(), Config::default()), Log::of(nodes, members)];
        let history = Self { logs };
        eventually(DEADLINE, "the first list of each kind", || async {
            let listed = |log: &Log| log.versions.lock().expect("the list").lists > 0;
            ensure!(history.logs.iter().all(listed), "not listed yet");
            Ok(())
        })
        .await?;
        Ok(history)
    }

    /// Ends the history, calls `check` with the state after each change, and returns their number. The history ends with the last
    /// version up to which the versions of all kinds are known.
    pub fn end(self, mut check: impl FnMut(&State) -> Result<()>) -> Result<usize> {
        let mut changes = Vec::new();
        let mut until = u64::MAX;
        for log in &self.logs {
            log.task.abort();
            let versions = std::mem::take(&mut *log.versions.lock().expect("the list"));
            ensure!(versions.lists == 1, "a watch was restarted");
            until =
                until.min(versions.changes.iter().map(|(version, ..)| *version).max().context("nothing was watched")?);
            changes.extend(versions.changes);
        }
        changes.retain(|(version, ..)| *version <= until);
        changes.sort_by_key(|(version, ..)| *version);
        let count = changes.len();
        let mut state = State::default();
        for (version, name, change) in changes {
            change(&mut state);
            check(&state).with_context(|| format!("{name}, version {version}"))?;
        }
        Ok(count)
    }
}
