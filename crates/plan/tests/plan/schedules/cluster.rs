//! A cluster whose programs take their steps in any order: the operator, which sees the cluster late, the DaemonSet controller,
//! kubelets, probes and users.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    loop_memory::Class,
    output::{
        body::{self, Body, Part},
        write::Write,
    },
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    claims,
    event::Event,
    operator::{self, Operator, PlannedPod, uptime},
    step::{Allowed, Fault, Step},
    store::{Change, Key, Kind, Store, hash_of},
};
use crate::{law, sim::Sim};

/// How long the API server works on a request at most, and how far a watch may be behind.
const LATEST: SignedDuration = SignedDuration::from_secs(60);
const LAG: SignedDuration = SignedDuration::from_secs(10);

#[derive(Clone)]
pub struct Cluster {
    pub sim: Sim,
    store: Store,
    operator: Operator,
    paused: Option<Operator>,
    /// Kinds whose watches lag. Those of all others deliver at once.
    lagging: &'static [Kind],
    pub allowed: Allowed,
    events: VecDeque<Event>,
    late: Vec<Late>,
    /// The nodes whose record may have changed between the record and the labels of one pass: by a late write, or by another operator
    /// while this one was paused. A write of labels has no precondition on the record.
    overtaken: BTreeSet<NodeName>,
    /// Whether nothing fails but for reboots: time passes only where nothing else happens, so that nothing takes too long.
    pub is_healthy: bool,
    /// How many reboots have happened.
    boots: u32,
}

/// What became of the object of a write since it was planned, if it is a pod to delete.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    Same,
    /// Kubelet restarted it in between, such as after a reboot.
    Restarted,
    /// It is gone, or another pod has its name, which in a cluster it would not have.
    Gone,
}

/// A write that is carried out later.
#[derive(Clone)]
struct Late {
    write: Arc<Write>,
    /// The time at which it was made.
    made: Timestamp,
    /// The pod that it deletes.
    pod: Option<PlannedPod>,
}

impl Cluster {
    pub fn new(sim: Sim, lagging: &'static [Kind], allowed: Allowed, events: &[Event]) -> Self {
        let mut store = Store::default();
        store.record(&sim);
        let operator = Operator::start(&store);
        let paused = (allowed.switches > 0).then(|| operator.clone());
        let events = events.iter().copied().collect();
        let (late, overtaken) = (Vec::new(), BTreeSet::new());
        Self { sim, store, operator, paused, lagging, allowed, events, late, overtaken, is_healthy: false, boots: 0 }
    }

    /// Returns it as a cluster in which nothing fails but for reboots.
    pub fn healthy(self) -> Self {
        Self { is_healthy: true, ..self }
    }

    /// Ends everything that may happen but need not.
    pub fn calm(&mut self) {
        self.allowed = Allowed::default();
        self.paused = None;
        let sim = &mut self.sim;
        sim.gpu_pods.clear();
        sim.unparsable_policies.clear();
        sim.unparsable_gpu_nodes.clear();
        // The collector deletes what a Node owned that is gone.
        let exists = |uid: &String| sim.nodes.values().any(|node| node.uid == *uid);
        sim.gpu_nodes.retain(|_, gpu_node| gpu_node.owner_references().iter().all(|owner| exists(&owner.uid)));
    }

    /// Returns whether a pass is being carried out.
    pub fn is_writing(&self) -> bool {
        self.operator.pass.is_some()
    }

    fn node(&self, index: usize) -> Option<NodeName> {
        self.sim.nodes.keys().nth(index).cloned()
    }

    /// Returns the steps that may be possible, without [`Step::Wait`]. A step may turn out to change nothing.
    pub fn steps(&self) -> Vec<Step> {
        let behind = |kind: &&Kind| self.operator.queues[kind].len() > self.allowed.lag;
        if let Some(kind) = self.lagging.iter().find(behind) {
            return vec![Step::Deliver(*kind)];
        }
        let mut steps = Vec::new();
        match &self.operator.pass {
            None if self.operator.awake => steps.push(Step::Plan),
            None => {}
            Some(pass) => {
                // The writes of a stage are independent of each other: the first and the last of them represent all orders.
                let last = pass.outstanding().len() - 1;
                let which = if last == 0 { vec![0] } else { vec![0, last] };
                steps.extend(which.into_iter().map(|which| Step::Write(which, Fault::None)));
                if self.allowed.faults > 0 {
                    let faults = [Fault::Rejected, Fault::Unanswered, Fault::Late, Fault::Slow];
                    steps.extend(faults.map(|fault| Step::Write(0, fault)));
                }
            }
        }
        let lagging = self.lagging.iter().filter(|kind| !self.operator.queues[kind].is_empty());
        steps.extend(lagging.map(|kind| Step::Deliver(*kind)));
        if !self.late.is_empty() {
            steps.push(Step::Late);
        }
        if self.allowed.kills > 0 {
            steps.push(Step::Kill);
        }
        if self.allowed.switches > 0 {
            steps.push(Step::Switch);
        }
        for node in 0..self.sim.nodes.len() {
            steps.extend([Step::Controller(node), Step::Kubelet(node), Step::Probe(node)]);
        }
        if !self.events.is_empty() {
            steps.push(Step::Event);
        }
        steps
    }

    pub fn take(&mut self, step: Step) -> Result<(), String> {
        match step {
            Step::Deliver(kind) => self.operator.deliver(kind),
            Step::Plan => self.operator.begin(&self.sim)?,
            Step::Write(which, fault) => self.write(which, fault)?,
            Step::Late => {
                let Late { write, pod, .. } = self.late.remove(0);
                let fate = self.fate(&write, pod);
                if fate == Fate::Same {
                    law::holds_late(&self.sim, &write)?;
                }
                self.record_is_written(&write);
                if fate != Fate::Gone {
                    drop(self.sim.write(&write));
                }
            }
            Step::Kill => {
                // Its connections are closed, so nothing is carried out after the next operator has listed everything.
                while !self.late.is_empty() {
                    self.take(Step::Late)?;
                }
                self.allowed.kills -= 1;
                self.operator = Operator::start(&self.store);
            }
            Step::Switch => {
                self.allowed.switches -= 1;
                if let Some(paused) = &mut self.paused {
                    std::mem::swap(paused, &mut self.operator);
                }
                self.operator.wake(self.sim.now);
            }
            Step::Controller(node) => {
                let Some(node) = self.node(node) else { return Ok(()) };
                let before = self.sim.clone();
                self.sim.run_controller(&node);
                law::of_controllers(&before, &self.sim, &node)?;
            }
            Step::Kubelet(node) => self.on(node, Sim::run_kubelet),
            Step::Probe(node) => self.on(node, Sim::run_probe),
            Step::Event => {
                let event = self.events.pop_front().expect("an event");
                self.boots += u32::from(matches!(event, Event::Reboot(_)));
                event.happen(&mut self.sim);
            }
            Step::Wait => self.wait()?,
        }
        self.publish();
        law::of_budgets(&self.sim)
    }

    fn on(&mut self, node: usize, step: impl FnOnce(&mut Sim, &NodeName)) {
        if let Some(node) = self.node(node) {
            step(&mut self.sim, &node);
        }
    }

    /// Sends what has changed to the operator.
    fn publish(&mut self) {
        for change in self.store.record(&self.sim) {
            self.send(change);
        }
        for kind in Kind::ALL.iter().filter(|kind| !self.lagging.contains(kind)) {
            while !self.operator.queues[kind].is_empty() {
                self.operator.deliver(*kind);
            }
        }
    }

    fn send(&mut self, change: Change) {
        if let Some(paused) = &mut self.paused {
            paused.send(change.clone());
        }
        self.operator.send(change);
    }

    /// Delivers everything to the operator.
    fn catch_up(&mut self) {
        for kind in Kind::ALL {
            while !self.operator.queues[&kind].is_empty() {
                self.operator.deliver(kind);
            }
        }
    }

    /// Returns the writes that are left to do for an operator that sees everything.
    pub fn left_to_do(&self) -> Vec<Arc<Write>> {
        let (mut plan, world) = (self.sim.plan(), self.sim.world());
        self.operator.carry.clone().begin(&mut plan, &world, uptime(self.sim.now)).concat()
    }

    fn fate(&self, write: &Write, planned: Option<PlannedPod>) -> Fate {
        let (Some(planned), name) = (planned, &write.target.name) else { return Fate::Same };
        match self.store.get(&(Kind::Pod, name.clone())) {
            Some(stored) if stored.born == planned.born => {
                let is_same = self.sim.pods[name].running_since() == planned.running_since
                    && operator::boot_of(&self.sim, name) == planned.boot;
                if is_same { Fate::Same } else { Fate::Restarted }
            }
            _ => Fate::Gone,
        }
    }

    fn write(&mut self, which: usize, fault: Fault) -> Result<(), String> {
        let pass = self.operator.pass.as_ref().expect("a pass");
        let write = pass.outstanding()[which].clone();
        if self.is_healthy {
            claims::of_healthy_nodes(&write, self.boots)?;
        }
        let pod = pass.pods.get(&write.target.name).copied().filter(|_| operator::deletes_pod(&write));
        if fault != Fault::None {
            self.allowed.faults -= 1;
        }
        let result = match fault {
            Fault::Slow => None,
            Fault::Rejected => Some(Err(Class::Forbidden)),
            Fault::Late => {
                self.late.push(Late { write: Arc::clone(&write), made: self.sim.now, pod });
                Some(Err(Class::Unreachable))
            }
            Fault::None | Fault::Unanswered => {
                let answer = match (self.fate(&write, pod), write.target.part) {
                    (Fate::Gone, _) => Ok(false),
                    (Fate::Restarted, _) => self.sim.write(&write),
                    // With a GpuNode the record is gone to which policy its node belongs.
                    (_, Part::Finalizer) if self.lacks_gpu_nodes(&pass.uids) => self.sim.write(&write),
                    _ => {
                        let is_overtaken = self.overtaken.contains(&write.target.name.as_str().into());
                        let holds = if is_overtaken { law::holds_late } else { law::holds };
                        holds(&self.sim, &write)?;
                        let is_another = self.is_for_another_gpu_node(&write, &pass.uids);
                        let answer = self.sim.write(&write);
                        if answer.is_ok() && self.paused.as_ref().is_some_and(|paused| paused.pass.is_some()) {
                            self.record_is_written(&write);
                        }
                        if is_another && answer.is_ok() {
                            return Err(format!("{write}: it is another one of this name"));
                        }
                        answer
                    }
                };
                let result = match answer {
                    _ if fault == Fault::Unanswered => Err(Class::Unreachable),
                    answer => answer.map(drop).map_err(|_| Class::Conflict),
                };
                if result.is_ok() {
                    self.learn(&write);
                } else {
                    self.publish();
                }
                Some(result)
            }
        };
        self.operator.answer(&write, result, &self.sim);
        Ok(())
    }

    /// Takes a write out of the order of its pass, or one that another operator makes in the middle of a pass.
    fn record_is_written(&mut self, write: &Write) {
        if matches!(write.body, Body::Spec(_)) {
            self.overtaken.insert(write.target.name.as_str().into());
        }
    }

    /// Returns whether one of these GpuNodes was deleted since the pass was planned.
    fn lacks_gpu_nodes(&self, planned: &BTreeMap<NodeName, String>) -> bool {
        let uid = |name| self.sim.gpu_nodes.get(name).and_then(ResourceExt::uid);
        planned.iter().any(|(name, planned)| uid(name).as_ref() != Some(planned))
    }

    /// Returns whether the GpuNode of a write of a spec was deleted and created again since the pass was planned.
    fn is_for_another_gpu_node(&self, write: &Write, planned: &BTreeMap<NodeName, String>) -> bool {
        let name = NodeName::from(write.target.name.as_str());
        let (planned, now) = (planned.get(&name), self.sim.gpu_nodes.get(&name).map(ResourceExt::uid));
        matches!(write.body, Body::Spec(_)) && planned.is_some() && now.is_some_and(|now| now.as_ref() != planned)
    }

    /// Lets the operator learn the answer to a write before its watches report it.
    fn learn(&mut self, write: &Write) {
        let key = key_of(write);
        for change in self.store.record(&self.sim) {
            if let Some(stored) = change.stored.clone().filter(|_| Some(&change.key) == key.as_ref()) {
                self.operator.learn(change.key.clone(), stored);
            }
            self.send(change);
        }
    }

    /// Lets time pass until the operator plans to write something, or has nothing to wait for.
    fn wait(&mut self) -> Result<(), String> {
        for _ in 0..200 {
            let soon = self.sim.now + SignedDuration::from_hours(1);
            let Some(due) = self.operator.due.filter(|due| *due < soon) else { return Ok(()) };
            let due = due.max(self.sim.now + SignedDuration::from_secs(1));
            while self.late.first().is_some_and(|late| late.made + LATEST < due) {
                self.take(Step::Late)?;
            }
            if self.sim.now + LAG < due {
                self.catch_up();
            }
            self.sim.now = due;
            let mut operator = self.operator.clone();
            operator.begin(&self.sim)?;
            if operator.pass.is_some() {
                self.operator.awake = true;
                return Ok(());
            }
            self.operator = operator;
        }
        Ok(())
    }

    /// Returns the hash of the state. It does not include the time, but all times that objects contain.
    pub fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for (key, stored) in self.store.iter() {
            (key, stored.hash).hash(&mut hasher);
        }
        self.operator.hash(&self.store, self.sim.now, &mut hasher);
        if let Some(paused) = &self.paused {
            paused.hash(&self.store, self.sim.now, &mut hasher);
        }
        let sim = &self.sim;
        let unparsable = (&sim.unparsable_policies, &sim.unparsable_gpu_nodes);
        hash_of(&(&sim.machines, &sim.gpu_pods, &sim.runtime_classes, &sim.refusals, unparsable)).hash(&mut hasher);
        (self.allowed, self.events.len()).hash(&mut hasher);
        self.late.iter().map(|late| late.write.to_string()).collect::<Vec<_>>().hash(&mut hasher);
        hasher.finish()
    }
}

/// Returns the object that the answer to a write contains.
fn key_of(write: &Write) -> Option<Key> {
    let kind = match (write.target.kind, &write.body) {
        (_, Body::Delete(_) | Body::Finalizer { present: false, .. }) | (body::Kind::RuntimeClass, _) => return None,
        (body::Kind::ClusterGpuPolicy, _) => Kind::Policy,
        (body::Kind::DaemonSet, _) => Kind::DaemonSet,
        (body::Kind::GpuNode, _) => Kind::GpuNode,
        (body::Kind::Node, _) => Kind::Node,
        (body::Kind::Pod, _) => Kind::Pod,
    };
    Some((kind, write.target.name.clone()))
}
