//! The agent: plays kubelet and probe for every node of a fleet, over the API and nothing else.
//!
//! Watches tell it what is placed on a node; a node of which anything has changed has its turn, in which its [`Machine`]
//! says what the API is to be told; what differs from what was told last is written.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt, channel::mpsc};
use gpu_operator_crd::Report;
use k8s_openapi::{
    api::core::v1::PodStatus,
    jiff::{SignedDuration, Timestamp},
};
use kube::Client;
use nvml_probe::report::gpu_node::GpuNodeView;
use tokio::{sync::watch, time::Instant};

use super::{
    machine::{Gpus, Machine},
    node::FleetNode,
    pod::PlacedPod,
    writes::{self, Write, Written},
};

/// Nodes that write side by side.
const AT_ONCE: usize = 32;
/// How soon what could not be written is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// The agent's state and its queue of nodes whose turn it is.
pub(super) struct Agent {
    client: Client,
    state: Mutex<State>,
    queue: mpsc::UnboundedSender<String>,
    /// When anything last happened that the fleet, or what governs it, has to do with.
    activity: watch::Sender<Instant>,
}

#[derive(Default)]
pub(super) struct State {
    pub slots: BTreeMap<String, Slot>,
    /// Every change of a Node's GPUs, in order.
    pub published: Vec<Published>,
    /// What could not be written last.
    pub error: Option<String>,
}

/// A change of a Node's allocatable GPUs, by whatever name they are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Published {
    /// The Node.
    pub node: String,
    /// The resource version of the Node with it: of two objects the one with the lesser version was written first.
    pub version: u64,
    /// How many there are from then on.
    pub gpus: u32,
}

/// One node.
pub(super) struct Slot {
    pub node: FleetNode,
    pub machine: Machine,
    /// Its Node is there.
    pub present: bool,
    /// Its kubelet and its probe work.
    pub alive: bool,
    pub labels: BTreeMap<String, String>,
    pub pods: BTreeMap<String, PlacedPod>,
    /// What the watch shows of its GpuNode.
    pub seen: GpuNodeView,
    sent: Sent,
    turn: Turn,
    /// When it has its turn by itself.
    timer: Option<Timestamp>,
}

/// Where a node stands in the queue. No node has two turns side by side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// It has nothing to do.
    None,
    /// It waits for its turn.
    Queued,
    /// It has its turn.
    Taken,
    /// It has its turn, and something has changed since that began.
    TakenAndMore,
}

/// What the API has been told.
#[derive(Default)]
struct Sent {
    statuses: BTreeMap<String, PodStatus>,
    ended: BTreeSet<String>,
    gpus: Option<Gpus>,
    report: Option<Report>,
}

impl Slot {
    pub fn new(node: FleetNode, pods: BTreeMap<String, PlacedPod>) -> Self {
        Self {
            machine: Machine::new(&node),
            node,
            present: false,
            alive: true,
            labels: BTreeMap::new(),
            pods,
            seen: GpuNodeView::Absent,
            sent: Sent::default(),
            turn: Turn::None,
            timer: None,
        }
    }

    /// From now on nothing is taken for told: of a node that was away, others may have written.
    pub fn forget_what_was_told(&mut self) {
        self.sent = Sent { gpus: self.sent.gpus, ..Sent::default() };
    }

    /// The GpuNode is gone, and with it what was reported.
    pub fn forget_report(&mut self) {
        self.sent.report = None;
    }

    /// What the Node was told of its GPUs last.
    pub fn gpus(&self) -> Option<u32> {
        self.sent.gpus.map(|gpus| gpus.count)
    }

    fn is_idle(&self) -> bool {
        self.turn == Turn::None && self.timer.is_none()
    }

    /// What is to be written in this turn, and when the next comes by itself.
    fn take_turn(&mut self, now: Timestamp) -> (Vec<Write>, Option<Timestamp>) {
        let placed: Vec<PlacedPod> = self.pods.values().cloned().collect();
        let release = self.seen.release().unwrap_or_default();
        let outcome = self.machine.turn(&self.node, &placed, release, now);
        let mut writes = Vec::new();
        for (uid, status) in outcome.statuses {
            if self.sent.statuses.get(&uid) != Some(&status) {
                writes.push(Write::Status(self.pods[&uid].clone(), Box::new(status)));
            }
        }
        for uid in outcome.ended.into_iter().filter(|uid| !self.sent.ended.contains(uid)) {
            writes.push(Write::End(self.pods[&uid].clone()));
        }
        if let Some(gpus) = outcome.gpus.filter(|gpus| self.sent.gpus != Some(*gpus)) {
            writes.push(Write::Gpus(self.node.name.clone(), gpus));
        }
        if let Some(report) = outcome.report.filter(|report| self.sent.report.as_ref() != Some(report)) {
            writes.push(Write::Report(self.node.name.clone(), self.seen.clone(), Box::new(report)));
        }
        (writes, outcome.next)
    }

    fn told(&mut self, written: Write) {
        match written {
            Write::Status(pod, status) => drop(self.sent.statuses.insert(pod.uid, *status)),
            Write::End(pod) => drop(self.sent.ended.insert(pod.uid)),
            Write::Gpus(_, gpus) => self.sent.gpus = Some(gpus),
            Write::Report(_, _, report) => self.sent.report = Some(*report),
        }
    }

    pub fn lose_pod(&mut self, uid: &str) {
        self.pods.remove(uid);
        self.sent.statuses.remove(uid);
        self.sent.ended.remove(uid);
    }
}

impl Agent {
    /// The agent, and its queue for [`Agent::work`].
    pub fn new(client: Client) -> (Arc<Self>, mpsc::UnboundedReceiver<String>) {
        let (queue, turns) = mpsc::unbounded();
        let activity = watch::Sender::new(Instant::now());
        (Arc::new(Self { client, state: Mutex::default(), queue, activity }), turns)
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something happened.
    pub fn note_activity(&self) {
        self.activity.send_replace(Instant::now());
    }

    /// When something last happened, and how to wait for more.
    pub fn activity(&self) -> watch::Receiver<Instant> {
        self.activity.subscribe()
    }

    /// Whether no node has anything to do, now or by itself later.
    pub fn is_idle(&self) -> bool {
        self.state().slots.values().all(|slot| !slot.alive || !slot.present || slot.is_idle())
    }

    /// Changes what is known of a node and lets it have its turn.
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
                // Nobody reads any more when the fleet has ended.
                let _ = self.queue.unbounded_send(name.to_owned());
            }
            Turn::Taken => slot.turn = Turn::TakenAndMore,
            Turn::Queued | Turn::TakenAndMore => {}
        }
    }

    /// Gives every node its turn when it comes, for ever.
    pub async fn work(self: Arc<Self>, turns: mpsc::UnboundedReceiver<String>) {
        let this = &self;
        turns.for_each_concurrent(AT_ONCE, |name| this.turn(name)).await;
    }

    async fn turn(self: &Arc<Self>, name: String) {
        let Some(writes) = self.begin(&name) else { return };
        for write in writes {
            let written = writes::carry_out(&self.client, &write).await;
            self.note(&name, write, written);
        }
        self.finish(&name);
    }

    /// What is to be written in this turn; nothing where there is no turn to be had.
    fn begin(self: &Arc<Self>, name: &str) -> Option<Vec<Write>> {
        let mut state = self.state();
        let slot = state.slots.get_mut(name)?;
        if !slot.alive || !slot.present {
            slot.turn = Turn::None;
            return None;
        }
        slot.turn = Turn::Taken;
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

    /// A timer that was set for another time by now wakes nobody.
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

    fn note(self: &Arc<Self>, name: &str, write: Write, written: anyhow::Result<Written>) {
        let mut state = self.state();
        let Some(slot) = state.slots.get_mut(name) else { return };
        match written {
            Ok(Written { version }) => {
                let published = match &write {
                    Write::Gpus(node, gpus) => Some(Published { node: node.clone(), version, gpus: gpus.count }),
                    _ => None,
                };
                slot.told(write);
                state.published.extend(published);
            }
            Err(error) => {
                state.error = Some(format!("{name}: {error:#}"));
                let (agent, name) = (Arc::clone(self), name.to_owned());
                tokio::spawn(async move {
                    tokio::time::sleep(AGAIN).await;
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
        if std::mem::replace(&mut slot.turn, Turn::None) == Turn::TakenAndMore {
            self.enqueue(name, slot);
        }
    }
}
