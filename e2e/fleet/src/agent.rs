//! The agent: it acts as kubelet and probe for every node of a fleet, through the API only.
//!
//! Watches add changes to the [`Slot`] of a node and put the node into a queue. When the agent processes the node, the
//! node's machine returns the state that the API must show, and what differs from the last writes is written.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, channel::mpsc};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use tokio::{sync::watch, time::Instant};

use super::{
    slot::{Slot, Turn},
    writes::{self, Write, Written},
};

/// The maximum number of nodes that write at the same time.
const MAX_CONCURRENT_TURNS: usize = 32;
/// The pause before a failed write is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// The agent's state and its queue of nodes.
pub(super) struct Agent {
    client: Client,
    state: Mutex<State>,
    queue: mpsc::UnboundedSender<String>,
    /// The time of the last change of the fleet or of the objects that govern it.
    activity: watch::Sender<Instant>,
}

#[derive(Default)]
pub(super) struct State {
    pub slots: BTreeMap<String, Slot>,
    /// All changes of Nodes' GPUs, in order.
    pub published: Vec<Published>,
    /// The error of the last failed write.
    pub error: Option<String>,
}

/// A change of a Node's allocatable GPUs, under any resource name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The Node's name.
    pub node: String,
    /// The Node's resource version after the change. Of two objects the one with the lower version was written first.
    pub version: u64,
    /// The number of GPUs since then.
    pub gpus: u32,
}

impl Agent {
    /// Returns the agent, and its queue for [`Agent::work`].
    pub fn new(client: Client) -> (Arc<Self>, mpsc::UnboundedReceiver<String>) {
        let (queue, turns) = mpsc::unbounded();
        let activity = watch::Sender::new(Instant::now());
        (Arc::new(Self { client, state: Mutex::default(), queue, activity }), turns)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that something has happened.
    pub fn note_activity(&self) {
        self.activity.send_replace(Instant::now());
    }

    /// Returns a receiver of the time at which something last happened.
    pub fn activity(&self) -> watch::Receiver<Instant> {
        self.activity.subscribe()
    }

    /// Returns whether no node has anything to do, now or by time alone.
    pub fn is_idle(&self) -> bool {
        self.state().slots.values().all(|slot| !slot.alive || !slot.present || slot.is_idle())
    }

    /// Changes a node's slot and puts the node into the queue.
    pub fn change(self: &Arc<Self>, name: &str, change: impl FnOnce(&mut Slot)) {
        let mut state = self.state();
        if let Some(slot) = state.slots.get_mut(name) {
            change(slot);
            self.enqueue(name, slot);
            drop(state);
            self.note_activity();
        }
    }

    fn enqueue(&self, name: &str, slot: &mut Slot) {
        match slot.turn {
            Turn::None => {
                slot.turn = Turn::Queued;
                // The receiver is gone when the fleet has ended.
                let _ = self.queue.unbounded_send(name.to_owned());
            }
            Turn::Running => slot.turn = Turn::RunningAndChanged,
            Turn::Queued | Turn::RunningAndChanged => {}
        }
    }

    /// Gives all nodes in the queue their turns; never returns.
    pub async fn work(self: Arc<Self>, turns: mpsc::UnboundedReceiver<String>) {
        let this = &self;
        turns.for_each_concurrent(MAX_CONCURRENT_TURNS, |name| this.turn(name)).await;
    }

    async fn turn(self: &Arc<Self>, name: String) {
        let Some(writes) = self.begin(&name) else { return };
        for write in writes {
            let result = writes::send(&self.client, &write).await;
            self.record(&name, write, result);
        }
        self.finish(&name);
    }

    /// Begins a node's turn and returns its writes; `None` if the node cannot have a turn.
    fn begin(self: &Arc<Self>, name: &str) -> Option<Vec<Write>> {
        let mut state = self.state();
        let slot = state.slots.get_mut(name)?;
        if !slot.alive || !slot.present {
            slot.turn = Turn::None;
            return None;
        }
        slot.turn = Turn::Running;
        let now = Timestamp::now();
        let (writes, next) = slot.take_turn(now);
        if next != slot.timer {
            slot.timer = next;
            if let Some(next) = next {
                self.wake_at(name, next, now);
            }
        }
        Some(writes)
    }

    /// Puts a node into the queue at a time, unless its timer has been changed by then.
    fn wake_at(self: &Arc<Self>, name: &str, at: Timestamp, now: Timestamp) {
        let pause = Duration::try_from(at.duration_since(now).max(SignedDuration::ZERO)).unwrap_or_default();
        let (agent, name) = (Arc::clone(self), name.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(pause).await;
            let mut state = agent.state();
            if let Some(slot) = state.slots.get_mut(&name).filter(|slot| slot.timer == Some(at)) {
                slot.timer = None;
                agent.enqueue(&name, slot);
            }
        });
    }

    fn record(self: &Arc<Self>, name: &str, write: Write, result: anyhow::Result<Written>) {
        let mut state = self.state();
        let Some(slot) = state.slots.get_mut(name) else { return };
        match result {
            Ok(Written { version }) => {
                let published = match &write {
                    Write::Gpus(node, gpus) => Some(Published { node: node.clone(), version, gpus: gpus.total() }),
                    _ => None,
                };
                slot.record(write);
                state.published.extend(published);
            }
            Err(error) => {
                state.error = Some(format!("{name}: {error:#}"));
                let (agent, name) = (Arc::clone(self), name.to_owned());
                tokio::spawn(async move {
                    tokio::time::sleep(RETRY_PAUSE).await;
                    agent.change(&name, |_| {});
                });
            }
        }
        drop(state);
        self.note_activity();
    }

    fn finish(&self, name: &str) {
        let mut state = self.state();
        let Some(slot) = state.slots.get_mut(name) else { return };
        if std::mem::replace(&mut slot.turn, Turn::None) == Turn::RunningAndChanged {
            self.enqueue(name, slot);
        }
    }
}
