//! One operator: what its mirrors show, and the pass that it is in.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
    sync::Arc,
};

use gpu_operator_plan::{
    Plan,
    carry::{Carry, Class, Failure},
    output::writes::{Unwritten, Write},
    time::Uptime,
    world::{DaemonSetFacts, World, mirror::Mirror},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::store::{Change, Key, Kind, Object, Store, Stored, hash_of};
use crate::sim::Sim;

/// An operator.
#[derive(Clone)]
pub struct Operator {
    mirrors: BTreeMap<Kind, Mirror<Stored>>,
    /// The events that its watches have not delivered yet.
    pub queues: BTreeMap<Kind, VecDeque<Change>>,
    /// Whether a fact has changed since the last pass began.
    pub awake: bool,
    pub pass: Option<Pass>,
    pub carry: Carry,
    /// When the last plan asked to be made again.
    pub check_again: Option<Timestamp>,
}

/// A pass whose plan is being carried out.
#[derive(Clone)]
pub struct Pass {
    pub plan: Arc<Plan>,
    /// The hash of everything that the plan was made from.
    hash: u64,
    /// When it began. Nothing is attempted twice within a pass.
    uptime: Uptime,
    stage: usize,
    /// Writes of the current stage that have been neither made nor left out.
    pub outstanding: Vec<String>,
    /// Writes that failed or were left out.
    failed: BTreeSet<String>,
    /// When the pods to recreate were created.
    pub born: BTreeMap<String, u64>,
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
        Self { mirrors, queues, awake: true, pass: None, carry: Carry::default(), check_again: None }
    }

    /// Sends a change to the operator.
    pub fn send(&mut self, change: Change) {
        self.queues.get_mut(&change.key.0).expect("a queue of each kind").push_back(change);
    }

    /// Delivers the next event of a kind.
    pub fn deliver(&mut self, kind: Kind) {
        let next = self.queues.get_mut(&kind).and_then(VecDeque::pop_front);
        if let Some(change) = next {
            self.learn(change);
        }
    }

    /// Learns of a change, from a watch or from the answer to a write.
    pub fn learn(&mut self, change: Change) {
        let mirror = self.mirrors.get_mut(&change.key.0).expect("a mirror of each kind");
        self.awake |= change.reach(mirror);
    }

    /// Returns the hash of what the mirrors show.
    pub fn view(&self) -> impl Hash + use<> {
        let facts = |(kind, mirror): (&Kind, &Mirror<Stored>)| {
            let facts = mirror.facts().unwrap_or_default().into_iter();
            facts.map(|(name, stored)| (*kind, name, stored.hash, stored.born)).collect::<Vec<_>>()
        };
        self.mirrors.iter().flat_map(facts).collect::<Vec<_>>()
    }

    /// Returns the world as the mirrors show it. What is not watched here is as it is.
    pub fn world(&self, sim: &Sim) -> World {
        let mut world = World {
            foreign_sets: BTreeMap::new(),
            runtime_classes: sim
                .runtime_classes
                .iter()
                .map(|(name, class)| (name.clone(), Arc::new(class.clone())))
                .collect(),
            refusals: sim.refusals.iter().map(|(name, refusal)| (name.clone(), Arc::new(refusal.clone()))).collect(),
            ..World::default()
        };
        for mirror in self.mirrors.values() {
            for (name, stored) in mirror.facts().unwrap_or_default() {
                match &stored.object {
                    Object::Policy(policy) => drop(world.policies.insert(name.into(), Arc::clone(policy))),
                    Object::Node(node) => drop(world.nodes.insert(name.into(), Arc::clone(node))),
                    Object::GpuNode(node) => drop(world.gpu_nodes.insert(name.into(), Arc::clone(node))),
                    Object::DaemonSet(set) => {
                        drop(world.daemon_sets.insert(name, Arc::new(DaemonSetFacts::of(set))));
                    }
                    Object::Pod(pod) => drop(world.pods.insert(name, Arc::clone(pod))),
                }
            }
        }
        self.carry.enrich(&mut world, uptime(sim.now));
        world
    }

    /// Begins a pass with a plan for this world, if it has any writes.
    pub fn begin(&mut self, plan: &Plan, hash: u64, world: &World, now: Timestamp) {
        self.awake = false;
        self.check_again = plan.check_again;
        let uptime = uptime(now);
        let mut plan = plan.clone();
        self.carry.begin(&mut plan, world, uptime);
        let born = |pod: &String| {
            let stored = self.mirrors[&Kind::Pod].get(pod)?;
            Some((pod.clone(), stored.born))
        };
        let born = plan.recreate.iter().filter_map(born).collect();
        let (outstanding, failed) = (Vec::new(), BTreeSet::new());
        let pass = Pass { plan: Arc::new(plan), hash, uptime, stage: 0, outstanding, failed, born };
        self.enter(pass, 0);
    }

    /// Records the answer to a write of the current pass.
    pub fn settle(&mut self, write: &Write<'_>, result: Result<(), Class>, now: Timestamp) {
        self.awake |= result.is_ok();
        let name = write.to_string();
        let failure = |class| Failure { class, message: format!("failed to {name}: {class:?}") };
        self.carry.settled(write, result.map_err(failure), uptime(now));
        let Some(mut pass) = self.pass.take() else { return };
        pass.outstanding.retain(|other| *other != name);
        if result.is_err() {
            pass.failed.insert(name);
        }
        let stage = pass.stage + 1;
        if pass.outstanding.is_empty() {
            self.enter(pass, stage);
        } else {
            self.pass = Some(pass);
        }
    }

    /// Enters the first stage from this on that has a write to make, or ends the pass.
    fn enter(&mut self, mut pass: Pass, stage: usize) {
        if pass.enter(stage, &self.carry) {
            self.pass = Some(pass);
        } else {
            self.carry.ended(&pass.plan);
        }
    }

    /// Returns when something is due: a held write, or what the last plan waits for.
    pub fn due(&self, now: Timestamp) -> Option<Timestamp> {
        let held = self.carry.next(uptime(now)).and_then(|wait| Some(now + SignedDuration::try_from(wait).ok()?));
        self.check_again.into_iter().chain(held).min()
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
            (pass.hash, pass.stage, &pass.outstanding, &pass.failed).hash(hasher);
            let same = |(pod, born): (&String, &u64)| is_current((Kind::Pod, pod.clone())) == Some(*born);
            pass.born.iter().map(same).collect::<Vec<_>>().hash(hasher);
        }
        let mut reported = World::default();
        self.carry.enrich(&mut reported, uptime(now));
        (
            self.awake,
            self.carry.next(uptime(now)),
            hash_of(&(reported.held_writes, reported.contested_nodes, reported.unanswered_updates)),
        )
            .hash(hasher);
    }
}

/// Returns a time of the scenario as the operator's clock shows it.
pub fn uptime(now: Timestamp) -> Uptime {
    now.duration_since(Timestamp::UNIX_EPOCH).unsigned_abs()
}

impl Pass {
    /// Enters the first stage from this on that has a write to make. Returns whether there is one.
    fn enter(&mut self, stage: usize, carry: &Carry) -> bool {
        let plan = Arc::clone(&self.plan);
        let stages = plan.stages();
        let mut unwritten = Unwritten::default();
        let failed = |write: &&Write<'_>| self.failed.contains(&write.to_string());
        stages.iter().take(stage).flatten().filter(failed).for_each(|write| unwritten.add(write));
        for (index, writes) in stages.iter().enumerate().skip(stage) {
            for write in writes {
                let name = write.to_string();
                if unwritten.prevents(write) || carry.holds(write, self.uptime) {
                    self.failed.insert(name);
                } else {
                    self.outstanding.push(name);
                }
            }
            writes
                .iter()
                .filter(|write| self.failed.contains(&write.to_string()))
                .for_each(|write| unwritten.add(write));
            if !self.outstanding.is_empty() {
                self.stage = index;
                return true;
            }
        }
        false
    }
}
