//! What has happened to a fleet, as far as the laws need it.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, NodeName, Revision,
    gpunode::{DisruptionScope, Rollout, RolloutStep},
    keys,
    policy::{Pool, Stage},
    policy_status::PoolRollout,
};
use gpu_operator_plan::{
    output::{body::Body, write::Write},
    pool_settings::PoolSettings,
    world::{NodeFacts, PodFacts},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;

use super::policy::{POOLED, SELECTED, SOAK};
use crate::{
    sim::Sim,
    truth::{is_used, pod},
};

#[derive(Clone, Default)]
pub struct History {
    /// The version of each revision of the driver that has existed.
    versions: BTreeMap<String, String>,
    /// A driver that reboots each machine on which it is loaded, after this time.
    pub reboots: Option<(&'static str, SignedDuration)>,
    /// The nodes that have had it.
    pub rebooted: BTreeSet<NodeName>,
    pub nodes: BTreeMap<NodeName, Past>,
    /// The versions with which a node of each pool has worked for the soak.
    pub proven: BTreeSet<(String, String)>,
    pub stopped: BTreeMap<String, Stopped>,
    /// The nodes that have failed in their turn, in the soak after it or in their first installation, for the present settings.
    pub failed: BTreeSet<(String, NodeName)>,
    /// What the nodes of each pool should get.
    wishes: BTreeMap<String, String>,
    /// The spec of the policy, and since when it has been like that.
    spec: String,
    pub edited: Option<Timestamp>,
    /// Since when the operator has been running.
    pub restarted: Option<Timestamp>,
}

/// Why nothing begins in a pool.
#[derive(Clone, Debug)]
pub struct Stopped {
    /// The version that stopped it.
    pub version: String,
    pub since: Timestamp,
    wish: String,
    pub rolled_back: bool,
    pub failed: Vec<NodeName>,
}

#[derive(Clone, Default)]
pub struct Past {
    /// The version of the driver with which it is ready.
    pub ready_with: Option<String>,
    /// The version that its label names, and since when it has worked with it, reboots apart.
    worked: Option<(String, Timestamp)>,
    loaded: Option<(String, Timestamp)>,
    /// When each label was lost that selects the node, if the node had what it should have.
    pub lost: BTreeMap<&'static str, Timestamp>,
    had: BTreeSet<&'static str>,
    pub turn: Option<Turn>,
    users: BTreeSet<String>,
    /// The pods that have been evicted from it.
    pub evicted: BTreeSet<String>,
    /// When the last GPU pod was started.
    pub started: Option<Timestamp>,
    /// Since when a GPU pod has run there while the update is in step Replace without a device plugin.
    pub blocked: Option<Timestamp>,
    /// The DaemonSet that its labels name and of which it lacks the pod first, and since when.
    pub missing: Option<(String, Timestamp)>,
    /// The boots during an update or its soak that no user asked for.
    pub boots: u32,
    boot: String,
    /// An update that evicted pods and was given up for no reason that arose later.
    pub in_vain: Option<String>,
}

/// An update of a node.
#[derive(Clone, Debug)]
pub struct Turn {
    pub update: u32,
    /// When it evicted its first pod.
    pub evicted: Option<Timestamp>,
    step: RolloutStep,
    deadline: Option<Timestamp>,
}

impl History {
    /// Returns the version of a revision of the driver.
    pub fn version(&self, revision: &str) -> Option<&str> {
        self.versions.get(revision).map(String::as_str)
    }

    /// Returns the version of the driver that a node's label names.
    pub fn version_of(&self, node: &NodeFacts) -> Option<&str> {
        self.version(node.labels.get(keys::DRIVER)?)
    }

    pub fn rebooting_machines(&self, now: Timestamp) -> Vec<NodeName> {
        let Some((driver, after)) = self.reboots else { return Vec::new() };
        let is_due = |past: &Past| {
            past.loaded
                .as_ref()
                .is_some_and(|(version, since)| version == driver && now.duration_since(*since) >= after)
        };
        self.nodes.iter().filter(|(_, past)| is_due(past)).map(|(name, _)| name.clone()).collect()
    }

    pub fn rebooted(&mut self, node: &NodeName) {
        if let Some(past) = self.nodes.get_mut(node) {
            past.loaded = None;
        }
        self.rebooted.insert(node.clone());
    }

    /// Observes what is true before or after a pass. Only after one the operator's record is of the present policy.
    pub fn observe(&mut self, sim: &Sim, has_passed: bool) {
        for set in sim.sets_of(Stage::Driver) {
            let image = Sim::image(set);
            let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
            let version = tag.split('-').next().unwrap_or_default().to_owned();
            self.versions.insert(set.name_any().replacen("driver-", "", 1), version);
        }
        let Some(policy) = sim.policies.get(&"all".into()) else { return };
        let spec = format!("{:?} {:?} {:?}", policy.spec, policy.annotations(), recommended(sim));
        if spec != self.spec {
            self.edited = Some(sim.now);
            self.spec = spec;
        }
        self.observe_stops(sim, policy, has_passed);
        self.nodes.retain(|name, _| sim.nodes.contains_key(name));
        for (name, node) in &sim.nodes {
            self.observe_node(sim, policy, name, node);
        }
    }

    fn observe_stops(&mut self, sim: &Sim, policy: &ClusterGpuPolicy, has_passed: bool) {
        let is_ready_with = |node: &NodeName, version: &String| {
            self.nodes.get(node).and_then(|past| past.ready_with.as_ref()) == Some(version)
        };
        self.stopped.retain(|pool, stopped| {
            let recovers = stopped.failed.iter().any(|node| is_ready_with(node, &stopped.version));
            stopped.wish == wish(sim, policy, pool) && (stopped.rolled_back || !recovers)
        });
        let has_stack_with = |pool: &str, label: &str| {
            let mut nodes = sim.nodes.values().filter(|node| pool_of(node) == pool);
            nodes.any(|node| node.labels.contains_key(keys::DRIVER) && node.labels.contains_key(label))
        };
        for pool in ["p", IMPLICIT] {
            let wish = wish(sim, policy, pool);
            if self.wishes.get(pool) != Some(&wish) {
                let is_ready = |node: &NodeName| sim.gpu_nodes.contains_key(node) && sim.status(node).is_ready();
                self.failed.retain(|(of, node)| of != pool || !is_ready(node));
                self.wishes.insert(pool.into(), wish);
            }
            // Nothing is known of a pool that had no rollout when its last node left.
            let has_rollout = ledger(policy).iter().any(|known| known.pool.as_str() == pool);
            if !has_stack_with(pool, keys::DRIVER) && !has_rollout && !self.stopped.contains_key(pool) {
                self.proven.retain(|(of, _)| of != pool);
            }
        }
        let most = policy.spec.rollout.max_failures.unwrap_or(1) as usize;
        // The record of a pool without nodes, or whose nodes no policy selects, may be of earlier wishes.
        let is_present = |found: &&PoolRollout| has_passed && has_stack_with(found.pool.as_str(), SELECTED.0);
        for found in ledger(policy).iter().filter(is_present) {
            let pool = found.pool.as_str().to_owned();
            let (Some(version), rolled_back) = (wanted(sim, policy, &pool), !found.rolled_back.is_empty()) else {
                continue;
            };
            if rolled_back || found.failed.len() >= most {
                let (version, wish, since) = (version.to_owned(), wish(sim, policy, &pool), sim.now);
                let stopped = Stopped { version, since, wish, rolled_back, failed: found.failed.clone() };
                let known = self.stopped.entry(pool).or_insert(stopped);
                known.rolled_back |= rolled_back;
            }
        }
    }

    fn observe_node(&mut self, sim: &Sim, policy: &ClusterGpuPolicy, name: &NodeName, node: &NodeFacts) {
        let now = sim.now;
        let gpu_node = sim.gpu_nodes.get(name);
        let rollout = gpu_node.and_then(|gpu_node| gpu_node.spec.rollout.as_ref());
        let pool = pool_of(node);
        let labelled = self.version_of(node).map(str::to_owned);
        let loaded = sim.machines.get(name).and_then(|machine| machine.driver.loaded.clone());
        let is_in_soak = gpu_node.is_some_and(|gpu_node| is_in_soak(gpu_node, now));
        let is_in_turn = rollout.is_some_and(|rollout| rollout.step != RolloutStep::Await);
        let is_first = gpu_node.is_some_and(|gpu_node| gpu_node.spec.last_update.is_none()) && rollout.is_none();
        if (is_in_turn || is_in_soak || is_first) && self.has_failed(sim, name, rollout) {
            self.failed.insert((pool.clone(), name.clone()));
        }
        let is_stopped = self.stopped.contains_key(&pool);
        let is_gone_back = self.is_excused(sim, policy, name, node);
        let past = self.nodes.entry(name.clone()).or_default();
        let is_ready = sim.status(name).is_ready() && node.ready && loaded.is_some() && loaded == labelled;
        past.worked.take_if(|(version, _)| labelled.as_ref() != Some(version));
        past.ready_with = labelled.filter(|_| is_ready);
        if let Some(version) = past.ready_with.clone() {
            let (version, since) = past.worked.get_or_insert((version, now));
            if now.duration_since(*since).as_secs() >= SOAK - 10 {
                self.proven.insert((pool, version.clone()));
            }
        }
        if past.loaded.as_ref().map(|(version, _)| version) != loaded.as_ref() {
            past.loaded = loaded.map(|version| (version, now));
        }
        let boot = sim.machines.get(name).map(|machine| machine.boot_id.clone()).unwrap_or_default();
        past.boots += u32::from(!past.boot.is_empty() && past.boot != boot && (is_in_turn || is_in_soak));
        past.boot = boot;
        for (key, value) in [SELECTED, POOLED] {
            let has = node.labels.get(key).map(Interned::as_str) == Some(value);
            if has {
                past.had.insert(key);
            } else if past.had.remove(key)
                && !node.labels.contains_key(keys::MANAGED)
                && has_wanted_before(gpu_node)
                && rollout.is_none()
                && !is_stopped
            {
                past.lost.insert(key, now);
            }
        }
        past.lost.retain(|_, at| now.duration_since(*at).as_secs() < 55);
        // A node that no policy has selected for that long leaves.
        let is_selected = node.labels.contains_key(SELECTED.0) || past.lost.contains_key(SELECTED.0);
        past.lost.retain(|_, _| is_selected);
        let users: BTreeSet<_> = sim.gpu_pods.get(name).into_iter().flatten().cloned().collect();
        if users.iter().any(|user| !past.users.contains(user)) {
            past.started = Some(now);
        }
        past.users = users;
        let has_plugin = pod(sim, name, Stage::DevicePlugin).is_some_and(PodFacts::running);
        let takes_gpus =
            |rollout: &Rollout| rollout.step == RolloutStep::Replace && rollout.scope == DisruptionScope::GpuPods;
        let is_blocked = rollout.is_some_and(takes_gpus) && is_used(sim, name) && !has_plugin && node.ready;
        past.blocked = is_blocked.then(|| past.blocked.unwrap_or(now));
        let mut stages = Stage::ALL.into_iter().filter_map(|stage| Some((stage, node.labels.get(stage.key())?)));
        // Later stages wait for it.
        let first = stages.find(|(stage, _)| !pod(sim, name, *stage).is_some_and(PodFacts::running));
        let missing = first.filter(|(stage, _)| node.ready && pod(sim, name, *stage).is_none());
        let missing = missing.map(|(stage, revision)| (format!("{}-{revision}", stage.as_str()), now));
        past.missing =
            past.missing.take().filter(|(set, _)| missing.as_ref().is_some_and(|(first, _)| first == set)).or(missing);
        past.observe_turn(gpu_node, rollout, is_gone_back, now);
    }

    /// Returns whether a node fails for good, and not only for a moment: its faults last, a container has crashed twice in this boot, or it
    /// has missed its deadline.
    fn has_failed(&self, sim: &Sim, name: &NodeName, rollout: Option<&Rollout>) -> bool {
        let version = sim.nodes.get(name).and_then(|node| self.version_of(node));
        let is_broken = version.is_some_and(|version| sim.broken_drivers.contains(version));
        let crashes = sim.faults.get(name).is_some_and(|faults| faults.crashing.is_some());
        let boot = sim.machines.get(name).map(|machine| machine.boot_id.as_str()).unwrap_or_default();
        let is_here = |pod: &str, of: &Interned| of.as_str() == boot && pod.ends_with(&format!("@{name}"));
        let twice = sim.crashes.iter().any(|((pod, of), count)| *count > 1 && is_here(pod, of));
        let deadline = rollout.and_then(|rollout| Some(rollout.deadline.as_ref()?.0));
        is_broken || crashes || twice || deadline.is_some_and(|deadline| sim.now >= deadline)
    }

    /// Returns whether something has arisen by which an update is given back: the node goes, or what it moves to stops.
    fn is_excused(&self, sim: &Sim, policy: &ClusterGpuPolicy, name: &NodeName, node: &NodeFacts) -> bool {
        let is = |(key, value): (&str, &str)| node.labels.get(key).map(Interned::as_str) == Some(value);
        let evicted = self.nodes.get(name).and_then(|past| past.turn.as_ref()?.evicted);
        let later = |at: Option<Timestamp>| at.zip(evicted).is_some_and(|(at, evicted)| at > evicted);
        let is_stopped = ledger(policy).iter().any(|pool| !pool.rolled_back.is_empty())
            || sim.condition("all", "Stalled").0 == "True";
        let started = self.nodes.get(name).and_then(|past| past.started);
        let is_edited = later(self.edited) && policy.spec.rollout.paused != Some(true);
        !node.ready
            || !node.taints.is_empty()
            || !is(SELECTED)
            || !is(POOLED)
            || node.labels.contains_key(keys::MANAGED)
            || is_stopped
            || is_edited
            || later(started)
    }

    /// Remembers that a pod is evicted.
    pub fn evicts(&mut self, sim: &Sim, pod: &str) {
        for past in self.nodes.values_mut().filter(|past| past.users.contains(pod)) {
            past.evicted.insert(pod.to_owned());
            if let Some(turn) = &mut past.turn {
                turn.evicted.get_or_insert(sim.now);
            }
        }
    }
}

fn has_wanted_before(gpu_node: Option<&GpuNode>) -> bool {
    gpu_node.is_some_and(|gpu_node| gpu_node.spec.current.as_ref() == Some(&gpu_node.spec.wanted))
}

impl Past {
    fn observe_turn(
        &mut self,
        gpu_node: Option<&GpuNode>,
        rollout: Option<&Rollout>,
        is_excused: bool,
        now: Timestamp,
    ) {
        let update = gpu_node.map_or(0, |gpu_node| gpu_node.spec.updates_begun);
        let deadline = rollout.and_then(|rollout| Some(rollout.deadline.as_ref()?.0));
        match (&mut self.turn, rollout) {
            (Some(turn), Some(rollout)) if turn.update == update => {
                turn.step = turn.step.max(rollout.step);
                turn.deadline = deadline;
            }
            (Some(turn), _) => {
                let is_over = turn.deadline.is_some_and(|deadline| now >= deadline);
                if turn.evicted.is_some() && turn.step != RolloutStep::Replace && !is_excused && !is_over {
                    self.in_vain = Some(format!("update {} evicted pods and was given up: {turn:?}", turn.update));
                }
                self.turn = None;
            }
            (None, Some(rollout)) => {
                self.turn = Some(Turn { update, evicted: None, step: rollout.step, deadline });
            }
            (None, None) => {}
        }
    }
}

/// Returns whether an update of a node has ended so recently that a failure is the update's: within the soak, and a minute for the operator
/// to notice.
pub fn is_in_soak(gpu_node: &GpuNode, now: Timestamp) -> bool {
    let ended = gpu_node.spec.last_update.as_ref().and_then(|last_update| Some(last_update.at.as_ref()?.0));
    ended.is_some_and(|ended| now.duration_since(ended).as_secs() <= SOAK + 60)
}

/// A node that gets a driver.
pub struct NewDriver<'h> {
    pub node: &'h NodeFacts,
    pub gets: &'h str,
    /// Whether it had a driver of this operator before.
    pub had_one: bool,
    /// When its update began, if it is in one.
    pub began: Option<Timestamp>,
}

impl<'h> NewDriver<'h> {
    /// The record of a node's revisions is written before its labels.
    pub fn of(history: &'h History, sim: &'h Sim, write: &'h Write) -> Option<Self> {
        let Body::Spec(after) = &write.body else { return None };
        let node = sim.nodes.get(&write.target.name.as_str().into())?;
        let before = sim.gpu_nodes.get(&node.name).map(|gpu_node| &gpu_node.spec);
        let current = before.and_then(|before| before.current.as_ref()?.driver.as_ref());
        let gets = after.spec.current.as_ref()?.driver.as_ref()?;
        let had = current.map(Revision::as_str).or(node.labels.get(keys::DRIVER).map(Interned::as_str));
        let gets = history.version(gets.as_str()).filter(|_| had != Some(gets.as_str()))?;
        let began = before.and_then(|before| Some(before.rollout.as_ref()?.since.0));
        let is_another = had.and_then(|had| history.version(had)) != Some(gets);
        is_another.then_some(Self { node, gets, had_one: had.is_some(), began })
    }
}

/// Returns the version that the policy wants for a pool.
pub fn wanted<'s>(sim: &'s Sim, policy: &'s ClusterGpuPolicy, pool: &str) -> Option<&'s str> {
    let version = PoolSettings::of(policy, named(policy, pool)).driver.version.as_deref();
    version.or_else(|| recommended(sim))
}

/// Returns the version that the operator recommends.
fn recommended(sim: &Sim) -> Option<&str> {
    let models = [sim.catalogue.model(IMPLICIT)?];
    sim.catalogue.default_driver(&models).ok().map(|release| release.version.as_str())
}

fn named<'p>(policy: &'p ClusterGpuPolicy, pool: &str) -> Option<&'p Pool> {
    policy.spec.pools.iter().find(|known| known.name.as_str() == pool)
}

/// Returns all settings that decide which revisions the nodes of a pool should get, and the retry annotation.
fn wish(sim: &Sim, policy: &ClusterGpuPolicy, pool: &str) -> String {
    let plugin = named(policy, pool).map(|pool| &pool.device_plugin);
    format!("{:?} {plugin:?} {:?}", wanted(sim, policy, pool), policy.annotations().get(keys::RETRY))
}

/// The pool of the nodes that no named pool has: their model.
const IMPLICIT: &str = "nvidia-h100-80gb";

/// Returns the pool to which a node belongs by its label.
pub fn pool_of(node: &NodeFacts) -> String {
    let is_pooled = node.labels.get(POOLED.0).map(Interned::as_str) == Some(POOLED.1);
    if is_pooled { "p".into() } else { IMPLICIT.into() }
}

pub fn ledger(policy: &ClusterGpuPolicy) -> &[PoolRollout] {
    policy.status.as_ref().map(|status| &*status.rollout.pools).unwrap_or_default()
}
