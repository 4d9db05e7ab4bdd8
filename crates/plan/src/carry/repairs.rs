//! A budget of repairs for each object. A repair is a successful write of what was last written there: another writer has changed
//! it since. The first repairs are made at once, so that a manual edit is reverted immediately. Then they become less and less
//! frequent: a controller or a webhook that writes something else would otherwise cause writes without end.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{NodeName, keys, reason::Reason};

use crate::{
    output::writes::{Stages, Write},
    revision::hash,
    time::Uptime,
    world::{Concern, HeldWrite, PodFacts, Role, World},
};

/// The number of repairs of an object that are made at once …
const AT_ONCE: u32 = 5;
/// … the pause before the next one, which doubles with each …
const FIRST_PAUSE: Duration = Duration::from_secs(90);
/// … and its maximum. A fight is over if no repair has been needed for as long. In total, these are 12 repairs in an hour.
const MAX_PAUSE: Duration = Duration::from_mins(10);
/// How long a write is remembered.
const MEMORY: Duration = Duration::from_hours(1);
/// How soon a fight that has just been noticed is reported.
const SOON: Duration = Duration::from_secs(1);

/// The last successful writes, by the hash of what they write to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Repairs {
    made: BTreeMap<u64, Made>,
    /// The generations of the DaemonSets that the current plan writes.
    generations: BTreeMap<String, i64>,
    /// What the pods that the current plan deletes are, by name: a controller creates the next one by another name.
    operands: BTreeMap<String, String>,
    /// When the first of the repairs that the current plan contains and that are held may be made, or a new fight is reported.
    next: Option<Uptime>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Made {
    content: u64,
    at: Uptime,
    repairs: u32,
    /// The generation that the object had when this was planned, if it is a DaemonSet.
    before: Option<i64>,
    fight: Option<Box<Fight>>,
}

/// A write that is needed again and again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Fight {
    target: String,
    /// What the other manager does to it.
    deed: &'static str,
    concerns: Concern,
    /// The other manager, if the object names one.
    manager: Option<Interned>,
    /// When a repair was last needed.
    needed: Uptime,
}

impl Repairs {
    /// Adds the current fights to the world.
    pub fn report(&self, world: &mut World) {
        for fight in self.made.values().filter_map(|made| made.fight.as_deref()) {
            let message = fight.message();
            match &fight.concerns {
                Concern::Node(node) => {
                    let messages = world.contested_nodes.entry(node.clone()).or_default();
                    if !messages.is_empty() {
                        messages.push_str("; ");
                    }
                    messages.push_str(&message);
                }
                concerns => {
                    let concerns = concerns.clone();
                    world.held_writes.push(HeldWrite { concerns, reason: Reason::ManagerConflict, message });
                }
            }
        }
    }

    /// Records the repairs that a plan contains, and removes those of DaemonSets that are held. Nothing that depends on such a
    /// DaemonSet has to wait: it exists.
    pub fn begin(&mut self, stages: &mut Stages, world: &World, now: Uptime) {
        self.next = None;
        let generation = |write: &Arc<Write>| match &**write {
            Write::DaemonSet(name, _) => Some((name.clone(), world.daemon_sets.get(name)?.generation?)),
            _ => None,
        };
        self.generations = stages.iter().flatten().filter_map(generation).collect();
        let operand = |write: &Arc<Write>| match &**write {
            Write::DeletePod(name) => Some((name.clone(), of_operand(world.pods.get(name)?)?)),
            _ => None,
        };
        self.operands = stages.iter().flatten().filter_map(operand).collect();
        self.made.retain(|_, made| now.saturating_sub(made.at) < MEMORY);
        for made in self.made.values_mut() {
            made.fight.take_if(|fight| now.saturating_sub(fight.needed) >= MAX_PAUSE);
        }
        for write in stages.iter().flatten() {
            self.note(write, world, now);
        }
        let is_repaired_later = |write: &Write| {
            matches!(write, Write::DaemonSet(name, _) if world.daemon_sets.contains_key(name)) && self.holds(write, now)
        };
        for stage in &mut *stages {
            stage.retain(|write| !is_repaired_later(write));
        }
        stages.retain(|stage| !stage.is_empty());
    }

    /// Records that a write is needed, if it is one more repair than those that are made at once. A write that leaves the object as
    /// it was is no fight: a webhook changes it on admission, for example to use a mirror of an image registry.
    fn note(&mut self, write: &Write, world: &World, now: Uptime) {
        let (target, generation) = (self.target(write), self.generation(write));
        let made = self.made.get_mut(&hash(&target)).filter(|made| made.repeats(write));
        let Some(made) = made.filter(|made| made.fight.is_some() || now < made.until()) else { return };
        // A pod that is deleted again and again is not what another manager made of it.
        let is_fought_over = !matches!(write, Write::DeletePod(_));
        let has_effect = is_fought_over && (generation.is_none() || generation != made.before);
        let next = if made.fight.is_some() || !has_effect { made.until() } else { now + SOON };
        self.next = self.next.into_iter().chain([next]).min();
        if !has_effect {
            return;
        }
        let deed = match write {
            Write::Pod(..) => "deleting",
            Write::PruneGpuNode(..) | Write::Prune(_) | Write::PruneClass(_) => "creating",
            _ => "changing",
        };
        let concerns = write.concerns();
        let fight =
            made.fight.get_or_insert_with(|| Box::new(Fight { target, deed, concerns, manager: None, needed: now }));
        fight.needed = now;
        fight.manager = co_writer(write, world).or(fight.manager.take());
    }

    /// Returns whether a write is a repair that is not to be made yet.
    #[must_use]
    pub fn holds(&self, write: &Write, now: Uptime) -> bool {
        let made = self.made.get(&hash(&self.target(write)));
        made.is_some_and(|made| now < made.until() && made.repeats(write))
    }

    /// Records a success.
    pub fn succeeded(&mut self, write: &Write, now: Uptime) {
        let target = self.target(write);
        let (content, before) = (content(write), self.generation(write));
        match self.made.get_mut(&hash(&target)) {
            Some(made) if made.content == content => {
                (made.at, made.repairs, made.before) = (now, made.repairs + 1, before);
            }
            _ => drop(self.made.insert(hash(&target), Made { content, at: now, repairs: 0, before, fight: None })),
        }
    }

    /// Returns the object, or the part of it, that a write changes.
    fn target(&self, write: &Write) -> String {
        match write {
            Write::Finalizer(name, _) => format!("the finalizer of policy {name}"),
            Write::PolicyStatus(name, _) => format!("the status of policy {name}"),
            Write::DaemonSet(name, _) | Write::Prune(name) => format!("DaemonSet {name}"),
            Write::RuntimeClass(name, _) | Write::PruneClass(name) => format!("RuntimeClass {name}"),
            Write::Spec(name, _) => format!("the spec of GpuNode {name}"),
            Write::Status(name, _) => format!("the status of GpuNode {name}"),
            Write::PruneGpuNode(name, _) => format!("GpuNode {name}"),
            Write::Labels(name, _) => format!("this operator's labels of node {name}"),
            Write::Condition(name, _) => format!("condition {} of node {name}", keys::HEALTH_CONDITION),
            Write::Taint(name, _) => format!("this operator's taint of node {name}"),
            Write::DeletePod(name) => self.operands.get(name).cloned().unwrap_or_else(|| format!("pod {name}")),
            Write::Pod(name, _) => format!("pod {name}"),
        }
    }

    /// Returns the generation of the DaemonSet that a write repairs.
    fn generation(&self, write: &Write) -> Option<i64> {
        match write {
            Write::DaemonSet(name, _) => self.generations.get(name).copied(),
            _ => None,
        }
    }

    /// Returns when the next repair may be made, or a message changes.
    #[must_use]
    pub fn next(&self) -> Option<Uptime> {
        let ends = self.made.values().filter_map(|made| Some(made.fight.as_ref()?.needed + MAX_PAUSE));
        ends.chain(self.next).min()
    }
}

impl Made {
    /// Returns when the next repair may be made.
    fn until(&self) -> Uptime {
        let pause = self.repairs.checked_sub(AT_ONCE).map_or(Duration::ZERO, |doublings| {
            FIRST_PAUSE.saturating_mul(1_u32.checked_shl(doublings).unwrap_or(u32::MAX)).min(MAX_PAUSE)
        });
        self.at + pause
    }

    /// Returns whether a write is a repair of this one.
    fn repeats(&self, write: &Write) -> bool {
        self.repairs >= AT_ONCE && self.content == content(write)
    }
}

impl Fight {
    fn message(&self) -> String {
        let Self { target, deed, manager, .. } = self;
        let minutes = MAX_PAUSE.as_secs() / 60;
        let (who, it) = manager.as_ref().map_or_else(
            || {
                let unknown = "an unknown component (managedFields lists no other manager)";
                (unknown.to_owned(), "that component".to_owned())
            },
            |manager| (format!("field manager {manager:?}"), format!("{manager:?}")),
        );
        format!("{who} keeps {deed} {target}; repairs are delayed by up to {minutes} minutes: stop {it} from doing so")
    }
}

/// Returns what a stage's pod is to its node, which its successor is as well.
fn of_operand(pod: &PodFacts) -> Option<String> {
    let Role::Operand(stage) = pod.role else { return None };
    Some(format!("the pod of the {} of node {}", stage.title(), pod.node))
}

/// Returns the hash of what a write writes, without what differs each time.
fn content(write: &Write) -> u64 {
    match write {
        Write::Finalizer(_, write) => hash(write),
        Write::PolicyStatus(_, status) => hash(status),
        Write::DaemonSet(_, write) => hash(&write.set),
        Write::RuntimeClass(_, class) => hash(class),
        Write::Spec(_, write) => hash(&(&write.spec, &write.owner)),
        Write::Status(_, status) => hash(status),
        // A key that is taken over before it is removed has a value that no node has otherwise.
        Write::Labels(_, write) => {
            let is_taken_over =
                |key: &str, value: &str| keys::NODE_LABELS.contains(&key) && ["", "none"].contains(&value);
            let labels = write.labels.iter().filter(|(key, value)| !is_taken_over(key, value));
            hash(&(&write.uid, labels.collect::<Vec<_>>()))
        }
        Write::Condition(_, condition) => {
            let condition = condition.as_ref();
            hash(&condition.map(|condition| (&condition.status, &condition.reason, &condition.message)))
        }
        Write::Taint(_, own) => hash(own),
        _ => 0,
    }
}

/// Returns the other manager that last wrote what a write repairs.
fn co_writer(write: &Write, world: &World) -> Option<Interned> {
    let of_node = |name: &NodeName| world.nodes.get(name).map(|node| &node.co_writers);
    match write {
        Write::DaemonSet(name, _) => world.daemon_sets.get(name)?.added_by.clone(),
        Write::Labels(name, _) => of_node(name)?.labels.clone(),
        Write::Condition(name, _) => of_node(name)?.condition.clone(),
        Write::Taint(name, _) => of_node(name)?.taints.clone(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::{HealthCondition, NodeFacts};

    const HOUR: u64 = 3600;

    /// Plans and makes the write of each second for which `planned` returns one, and returns the seconds of those that were made.
    fn made(
        repairs: &mut Repairs,
        seconds: std::ops::Range<u64>,
        planned: impl Fn(u64) -> Option<&'static str>,
    ) -> Vec<u64> {
        let name = NodeName::from("a");
        let world = World { nodes: [(name.clone(), Arc::new(NodeFacts::default()))].into(), ..World::default() };
        let mut made = Vec::new();
        for second in seconds {
            let Some(message) = planned(second) else { continue };
            let now = Uptime::from_secs(second);
            let since = k8s_openapi::jiff::Timestamp::from_second(second.cast_signed()).ok();
            let condition = HealthCondition { message: message.into(), since, ..HealthCondition::default() };
            let write = Write::Condition(name.clone(), Some(condition));
            repairs.note(&write, &world, now);
            if !repairs.holds(&write, now) {
                repairs.succeeded(&write, now);
                made.push(second);
            }
        }
        made
    }

    #[test]
    fn a_fight_costs_at_most_twelve_repairs_in_any_hour() {
        let made = made(&mut Repairs::default(), 0..5 * HOUR, |_| Some("x"));
        assert_eq!(made[..9], [0, 1, 2, 3, 4, 5, 95, 275, 635]);
        let repairs = &made[1..];
        for start in repairs {
            let within = repairs.iter().filter(|at| (*start..start + HOUR).contains(at)).count();
            assert!(within <= 12, "{within} from {start}: {repairs:?}");
        }
        assert!(repairs.windows(2).all(|pair| pair[1] - pair[0] <= 600), "repairs go on: {repairs:?}");
    }

    #[test]
    fn a_write_that_changes_with_the_facts_is_never_held() {
        let alternates = |second: u64| Some(if second.is_multiple_of(2) { "x" } else { "y" });
        assert_eq!(made(&mut Repairs::default(), 0..HOUR, alternates).len(), 3600);
    }

    #[test]
    fn after_an_hour_without_a_repair_the_budget_is_full_again() {
        let mut repairs = Repairs::default();
        let before = made(&mut repairs, 0..HOUR, |_| Some("x"));
        let last = before.last().copied().unwrap();
        for (quiet, at_once) in [(HOUR - 1, 1), (2 * HOUR, 6)] {
            let mut repairs = repairs.clone();
            let again = last + quiet;
            repairs.begin(&mut Stages::default(), &World::default(), Uptime::from_secs(again));
            assert_eq!(made(&mut repairs, again..again + 60, |_| Some("x")).len(), at_once);
        }
    }

    #[test]
    fn a_fight_ends_when_no_repair_has_been_needed_for_ten_minutes() {
        let mut repairs = Repairs::default();
        made(&mut repairs, 0..60, |_| Some("x"));
        let report = |repairs: &Repairs| {
            let mut world = World::default();
            repairs.report(&mut world);
            world.contested_nodes.len()
        };
        let end = Uptime::from_secs(59) + MAX_PAUSE;
        let mut pass = |now| {
            repairs.begin(&mut Stages::default(), &World::default(), now);
            (report(&repairs), repairs.next())
        };
        assert_eq!(pass(end.saturating_sub(SOON)), (1, Some(end)));
        assert_eq!(pass(end), (0, None));
    }
}
