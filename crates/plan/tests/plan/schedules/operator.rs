//! One operator: what its mirrors show, and the pass that it is in.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
    sync::Arc,
};

use gpu_operator_common::mirror::{Mirror, Version};
use gpu_operator_crd::{GpuNode, NodeName};
use gpu_operator_plan::{
    loop_memory::{Class, Failure, LoopState},
    output::{
        body::{Body, Kind as Target},
        write::Write,
    },
    pass::{Answer, Pass, Request},
    time::Uptime,
    world::{DaemonSetFacts, ObservedTime, World},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::{
    claims,
    store::{Change, Key, Kind, Object, Store, Stored, hash_of},
};
use crate::sim::{Sim, constant::is_constant};

/// One in so many seconds.
const SAMPLE: i64 = 5;

#[derive(Clone)]
pub struct Operator {
    mirrors: BTreeMap<Kind, Mirror<Stored>>,
    /// The events that its watches have not delivered yet.
    pub queues: BTreeMap<Kind, VecDeque<Change>>,
    /// Whether a fact has changed since the last pass began.
    pub awake: bool,
    pub pass: Option<InFlight>,
    pub carry: LoopState,
    /// When the next pass is due, if nothing changes before.
    pub due: Option<Timestamp>,
}

/// A pod that a plan recreates. Its successor has the same name in the simulation.
#[derive(Clone, Copy)]
pub struct PlannedPod {
    /// When it was created.
    pub born: Version,
    /// Since when it ran, and on which boot of its machine: one that a reboot starts again may have started within the same second.
    pub running_since: Option<ObservedTime>,
    pub boot: u64,
}

/// A pass that is being carried out.
#[derive(Clone)]
pub struct InFlight {
    pass: Pass,
    /// The hash of all its writes.
    hash: u64,
    /// Writes that failed.
    failed: BTreeSet<String>,
    /// The pods to recreate.
    pub pods: BTreeMap<String, PlannedPod>,
    /// The uids of the GpuNodes that it was planned for.
    pub uids: BTreeMap<NodeName, String>,
}

impl InFlight {
    /// Returns the writes that are being made. There is at least one.
    pub fn outstanding(&self) -> Vec<Arc<Write>> {
        self.pass.outstanding()
    }
}

impl Operator {
    /// Returns an operator that has just listed everything.
    pub fn start(store: &Store) -> Self {
        let mut mirrors: BTreeMap<Kind, Mirror<Stored>> = Kind::ALL.map(|kind| (kind, Mirror::default())).into();
        for mirror in mirrors.values_mut() {
            mirror.begin_list();
        }
        for ((kind, name), stored) in store.iter() {
            let mirror = mirrors.get_mut(kind).expect("a mirror of each kind");
            mirror.list(name.clone(), stored.version, stored.clone());
        }
        for mirror in mirrors.values_mut() {
            mirror.end_list();
        }
        let queues = Kind::ALL.map(|kind| (kind, VecDeque::new())).into();
        Self { mirrors, queues, awake: true, pass: None, carry: LoopState::default(), due: None }
    }

    /// Lets the operator go on after a pause. Requests that it has not made by the end of its pass are not made any more.
    pub fn wake(&mut self, now: Timestamp) {
        let is_over = |in_flight: &mut InFlight| in_flight.pass.ends().is_some_and(|end| uptime(now) >= end);
        self.awake |= self.pass.take_if(is_over).is_some();
    }

    pub fn send(&mut self, change: Change) {
        self.queues.get_mut(&change.key.0).expect("a queue of each kind").push_back(change);
    }

    /// Delivers the next event of a kind.
    pub fn deliver(&mut self, kind: Kind) {
        let next = self.queues.get_mut(&kind).and_then(VecDeque::pop_front);
        if let Some(change) = next {
            self.awake |= change.reach(self.mirrors.get_mut(&kind).expect("a mirror of each kind"));
        }
    }

    /// Learns an object from the answer to a write.
    pub fn learn(&mut self, key: Key, stored: Stored) {
        let mirror = self.mirrors.get_mut(&key.0).expect("a mirror of each kind");
        self.awake |= mirror.learn(key.1, stored.version, stored);
    }

    /// Returns the hash of what the mirrors show.
    pub fn view(&self) -> impl Hash + use<> {
        let facts = |(kind, mirror): (&Kind, &Mirror<Stored>)| {
            let facts = mirror.facts().unwrap_or_default();
            facts.iter().map(|(name, stored)| (*kind, name.clone(), stored.hash, stored.born)).collect::<Vec<_>>()
        };
        self.mirrors.iter().flat_map(facts).collect::<Vec<_>>()
    }

    /// Returns the world as the mirrors show it. What is not watched here is as it is.
    pub fn world(&self, sim: &Sim) -> World {
        let mut world = World {
            runtime_classes: sim
                .runtime_classes
                .iter()
                .map(|(name, class)| (name.clone(), Arc::new(class.clone())))
                .collect(),
            refusals: sim.refusals.iter().map(|(name, refusal)| (name.clone(), Arc::new(refusal.clone()))).collect(),
            ..World::default()
        };
        for (kind, mirror) in &self.mirrors {
            for (name, stored) in &mirror.facts().unwrap_or_default() {
                match &stored.object {
                    Object::Policy(policy) => drop(world.policies.insert(name.as_str().into(), Arc::clone(policy))),
                    Object::Node(node) => drop(world.nodes.insert(name.as_str().into(), Arc::clone(node))),
                    Object::GpuNode(node) => drop(world.gpu_nodes.insert(name.as_str().into(), Arc::clone(node))),
                    Object::DaemonSet(set) => {
                        drop(world.daemon_sets.insert(name.clone(), Arc::new(DaemonSetFacts::of(set))));
                    }
                    Object::Pod(pod) => drop(world.pods.insert(Arc::clone(pod))),
                    Object::Unparsable if *kind == Kind::Policy => {
                        world.unreadable_policies.insert(name.as_str().into());
                    }
                    Object::Unparsable => {
                        world.unreadable_gpu_nodes.insert(name.as_str().into());
                    }
                }
            }
        }
        world
    }

    /// Observes and plans, and begins a pass if the plan has any writes.
    pub fn begin(&mut self, sim: &Sim) -> Result<(), String> {
        let (world, uptime) = (self.world(sim), uptime(sim.now));
        // Only some plans: each is made three times.
        if sim.now.as_second() % SAMPLE == 0 {
            is_constant(&sim.settings, &sim.catalogue, &world, sim.now)?;
        }
        self.awake = false;
        let (mut pass, mut requests) = Pass::begin(world.clone(), sim.now, &mut sim.around(&mut self.carry, uptime));
        while let Some(question) = requests.first().filter(|request| !matches!(request, Request::Write(_))) {
            requests = pass.step(sim.read(question), &mut sim.around(&mut self.carry, uptime));
        }
        let writes = [pass.outstanding(), pass.later()].concat();
        claims::of_boots(&world, &writes)?;
        let planned = |pod: &String| {
            let running_since = world.pods.get(pod).and_then(|pod| pod.running_since());
            let (born, boot) = (self.mirrors[&Kind::Pod].get(pod)?.born, boot_of(sim, pod));
            Some((pod.clone(), PlannedPod { born, running_since, boot }))
        };
        let deleted = writes.iter().filter(|write| deletes_pod(write)).map(|write| &write.target.name);
        let pods = deleted.filter_map(planned).collect();
        let uid = |(name, gpu_node): (&NodeName, &Arc<GpuNode>)| Some((name.clone(), gpu_node.uid()?));
        let uids = world.gpu_nodes.iter().filter_map(uid).collect();
        self.pass = Some(InFlight { pass, hash: hash_of(&writes), failed: BTreeSet::new(), pods, uids });
        self.end_pass(sim.now);
        Ok(())
    }

    /// Takes the answer to a write of the current pass; `None` if there is none yet.
    pub fn answer(&mut self, write: &Arc<Write>, result: Option<Result<(), Class>>, sim: &Sim) {
        let Some(InFlight { pass, failed, .. }) = &mut self.pass else { return };
        self.awake |= result == Some(Ok(()));
        if result != Some(Ok(())) {
            failed.insert(write.to_string());
        }
        let failure = |class| Failure { class, message: format!("failed to {write}: {class:?}") };
        let answer = match result {
            None => Answer::Slow(Arc::clone(write)),
            Some(result) => Answer::Written(Arc::clone(write), result.map_err(failure)),
        };
        // What follows is outstanding.
        drop(pass.step(answer, &mut sim.around(&mut self.carry, uptime(sim.now))));
        self.end_pass(sim.now);
    }

    /// Ends the pass if nothing is outstanding.
    fn end_pass(&mut self, now: Timestamp) {
        if let Some(InFlight { pass, .. }) = self.pass.take_if(|pass| pass.outstanding().is_empty()) {
            let next = pass.next(&self.carry, uptime(now));
            self.due = next.and_then(|wait| Some(now + SignedDuration::try_from(wait).ok()?));
        }
    }

    /// Returns the hash of the operator's state, without versions and times, which differ by history.
    pub fn hash(&self, store: &Store, now: Timestamp, hasher: &mut impl Hasher) {
        self.view().hash(hasher);
        for (kind, queue) in &self.queues {
            let superseded = |change: &Change| {
                self.mirrors[kind].get(&change.key.1).is_some_and(|known| known.version > change.version)
            };
            let content = |change: &Change| change.stored.as_ref().map(|stored| (stored.hash, stored.born));
            for change in queue {
                (&change.key, content(change), superseded(change)).hash(hasher);
            }
        }
        // A pod that was recreated looks the same.
        let is_current = |key: Key| store.get(&key).map(|stored| stored.born);
        if let Some(pass) = &self.pass {
            let outstanding: Vec<_> = pass.outstanding().iter().map(ToString::to_string).collect();
            (pass.hash, outstanding, pass.pass.later().len(), &pass.failed).hash(hasher);
            let same =
                |(pod, planned): (&String, &PlannedPod)| is_current((Kind::Pod, pod.clone())) == Some(planned.born);
            pass.pods.iter().map(same).collect::<Vec<_>>().hash(hasher);
        }
        let mut reported = World::default();
        self.carry.clone().annotate(&mut reported, uptime(now));
        (self.awake, self.carry.next(uptime(now)), hash_of(&(reported.held_writes, reported.contested_nodes)))
            .hash(hasher);
    }
}

/// Returns the boot of the machine of a pod.
pub fn boot_of(sim: &Sim, pod: &str) -> u64 {
    let machine = sim.pods.get(pod).and_then(|pod| sim.machines.get(&pod.node));
    hash_of(&machine.map(|machine| &machine.boot_id))
}

pub fn deletes_pod(write: &Write) -> bool {
    write.target.kind == Target::Pod && matches!(write.body, Body::Delete(_))
}

/// Returns a time of the scenario as the operator's clock shows it.
pub fn uptime(now: Timestamp) -> Uptime {
    now.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs()
}
