//! The ledger of a policy: which of its nodes may be disrupted, and which updates have failed. It is a part of the policy's status, written
//! only if the policy has not changed since it was read. Each slot allows one update, the one with its number. So two operators at once can
//! waste work, but never exceed a budget:
//!
//! ```text
//!   claim: the slot (node, update n + 1) is in the ledger  ─▶  begin: GpuNode.spec.updatesBegun becomes n + 1, with a record of the update
//!   free:  the slot leaves the ledger  ◀─  end: the record is gone; spec.updatesBegun stays n + 1, so the slot is spent for every reader
//! ```
//!
//! A slot that is not needed any more is spent before it is freed, because another operator may be about to use it.

use std::time::Duration;

use gpu_operator_crd::{
    ClusterGpuPolicy, NodeName, PoolName, keys,
    policy_status::{MAX_POOLS, PoolRollout, Reboot, RolloutTarget, Slot},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt;

use crate::{
    assess::{Assessment, member::Member},
    clock::Clock,
    rollout::goal::{Goals, target_of},
    time::later,
    world::World,
};

/// How long a slot of an unknown GpuNode is kept: the watch of GpuNodes may be behind.
const UNKNOWN_AT_MOST: Duration = Duration::from_mins(2);
/// The maximum number of failed nodes of a pool: as many halt every rollout.
const MAX_FAILED: usize = 100;
/// The maximum length of the value of the annotation [`keys::RETRY`], in bytes.
const MAX_RETRY: usize = 63;
/// In characters.
const MAX_CAUSE: usize = 512;
/// Of a pool.
const MAX_TARGETS: usize = 8;
const MAX_REBOOTS: usize = 8;

#[derive(Clone, Debug)]
pub struct Ledger<'w> {
    policy: &'w ClusterGpuPolicy,
    slots: Vec<Slot>,
    pools: Vec<PoolRollout>,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    pub slots: Vec<Slot>,
    /// What is remembered of pools.
    pub pools: Vec<PoolRollout>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotState {
    /// The update may begin at any time.
    Unused,
    /// The update is under way, or may be.
    InUse,
    /// The update is over, or cannot begin any more.
    Spent,
    /// Its GpuNode is not known, which proves nothing until then.
    Unknown(Timestamp),
}

impl<'w> Ledger<'w> {
    /// Leaves out the slots that are spent.
    pub fn of(policy: &'w ClusterGpuPolicy, world: &World, clock: &Clock) -> Self {
        let (slots, pools) = recorded(policy);
        let mut ledger = Self { policy, slots: Vec::new(), pools: pools.to_vec() };
        for slot in slots {
            match state_of(slot, world) {
                SlotState::Spent => continue,
                SlotState::Unknown(until) if clock.reached(until) => continue,
                SlotState::Unknown(_) | SlotState::Unused | SlotState::InUse => {}
            }
            ledger.slots.push(slot.clone());
        }
        ledger
    }

    /// Returns the command by which failed updates are attempted again.
    pub fn retry_command(&self) -> String {
        let policy = self.policy.name_any();
        format!("kubectl annotate clustergpupolicy {policy} --overwrite {}=$(date +%s)", keys::RETRY)
    }

    /// Those that are not spent.
    pub fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.slots.iter()
    }

    /// Returns the slot for the next update of a member.
    pub fn slot_of(&self, member: &Member<'_>) -> Option<&Slot> {
        // A node has one slot. The UID is compared last, because each comparison copies it.
        let slot = self.slots.iter().find(|slot| slot.node == member.node.name)?;
        let is_next = slot.update == member.updates_begun() + 1 && slot.pool == member.pool.name;
        (is_next && member.gpu_node?.uid().as_ref() == Some(&slot.uid)).then_some(slot)
    }

    /// Returns the slots of updates that have not begun.
    pub fn unused_slots<'l>(&'l self, world: &'l World) -> impl Iterator<Item = &'l Slot> {
        self.slots.iter().filter(|slot| state_of(slot, world) == SlotState::Unused)
    }

    pub fn claim(&mut self, member: &Member<'_>, clock: &Clock) {
        let Some(uid) = member.gpu_node.and_then(ResourceExt::uid) else { return };
        let node = member.node.name.clone();
        // A node has one slot: an earlier one is for a turn that is over.
        self.slots.retain(|slot| slot.node != node);
        let (pool, update) = (member.pool.name.clone(), member.updates_begun() + 1);
        self.slots.push(Slot { node, pool, uid, update, since: Some(Time(clock.now())) });
    }

    /// Forgets what is remembered of other revisions than those that the nodes of the pool should get, or from before users asked for another
    /// attempt. Nodes with another operating system have other revisions, which prove nothing about those that were begun.
    pub fn enter(&mut self, pool: &PoolName, members: &[Assessment<'_>]) {
        let retry = retry_of(self.policy);
        let Some(known) = self.pools.iter_mut().find(|known| known.pool == *pool) else { return };
        let wanted: Vec<_> = members.iter().filter_map(|assessed| target_of(&assessed.member)).collect();
        let is_begun = |wanted: &String| known.targets.iter().any(|target| target.revision == *wanted && target.begun);
        let is_new = |wanted: &String| !known.targets.iter().any(|target| target.revision == *wanted);
        if known.retry != retry || wanted.iter().any(is_new) && !wanted.iter().any(is_begun) {
            *known = PoolRollout { pool: pool.clone(), since: known.since.clone(), ..PoolRollout::default() };
            retry.clone_into(&mut known.retry);
        }
    }

    pub fn pool(&self, pool: &PoolName) -> Option<&PoolRollout> {
        self.pools.iter().find(|known| known.pool == *pool)
    }

    pub fn failed(&self, pool: &PoolName) -> &[NodeName] {
        self.pool(pool).map(|known| known.failed.as_slice()).unwrap_or_default()
    }

    /// Returns when the rollout of the pool began.
    pub fn begin(&mut self, member: &Member<'_>, clock: &Clock) -> Time {
        self.begun(member).since.get_or_insert(Time(clock.now())).clone()
    }

    /// The update of a node has failed.
    pub fn fail(&mut self, member: &Member<'_>) {
        let known = self.begun(member);
        if !known.failed.contains(&member.node.name) && known.failed.len() < MAX_FAILED {
            known.failed.push(member.node.name.clone());
        }
    }

    /// Forgets a failure: the node is ready.
    pub fn recover(&mut self, pool: &PoolName, node: &NodeName) {
        let of_pool = self.pools.iter_mut().filter(|known| known.pool == *pool);
        of_pool.for_each(|known| known.failed.retain(|name| name != node));
    }

    /// Only failures after this count.
    pub fn roll_back(&mut self, pool: &PoolName, cause: &str) {
        let known = self.remembered(pool);
        known.failed.clear();
        known.reboots.clear();
        known.rolled_back = cause.chars().take(MAX_CAUSE).collect();
    }

    /// The node was rebooted during or shortly after its update.
    pub fn reboot(&mut self, member: &Member<'_>) {
        let (node, boot_id) = (member.node.name.clone(), member.node.boot_id.to_string());
        let known = &mut self.remembered(&member.pool.name).reboots;
        if known.len() < MAX_REBOOTS && !known.iter().any(|reboot| reboot.boot_id == boot_id) {
            known.push(Reboot { node, boot_id });
        }
    }

    pub fn complete(&mut self, pool: &PoolName) {
        self.pools.retain(|known| known.pool != *pool);
    }

    /// Remembers what the nodes of a pool had before its rollout.
    pub fn know(&mut self, pool: &PoolName, goals: &Goals) {
        let Some(known) = self.pools.iter_mut().find(|known| known.pool == *pool) else { return };
        for RolloutTarget { revision, proven, .. } in goals.targets() {
            if let Some(target) = target(known, revision, false) {
                target.proven.clone_from(proven);
            }
        }
    }

    /// Drops the oldest pools without nodes, if there are too many.
    pub fn bound(&mut self, has_nodes: impl Fn(&PoolName) -> bool) {
        while self.pools.len() > MAX_POOLS
            && let Some(index) = self.pools.iter().position(|known| !has_nodes(&known.pool))
        {
            self.pools.remove(index);
        }
    }

    /// Returns what is remembered of a member's pool, in which an update to what the member wants has begun.
    fn begun(&mut self, member: &Member<'_>) -> &mut PoolRollout {
        let known = self.remembered(&member.pool.name);
        if let Some(target) = target_of(member).and_then(|revision| target(known, &revision, true)) {
            target.begun = true;
        }
        known
    }

    fn remembered(&mut self, pool: &PoolName) -> &mut PoolRollout {
        let known = self.pools.iter().position(|known| known.pool == *pool);
        let index = known.unwrap_or_else(|| {
            let retry = retry_of(self.policy).to_owned();
            self.pools.push(PoolRollout { pool: pool.clone(), retry, ..PoolRollout::default() });
            self.pools.len() - 1
        });
        &mut self.pools[index]
    }

    pub fn changed(self) -> Option<Content> {
        let is_same = (&*self.slots, &*self.pools) == recorded(self.policy);
        (!is_same).then_some(Content { slots: self.slots, pools: self.pools })
    }
}

/// Returns what is remembered of a revision. If there is no room, one that was begun replaces one that was only wanted, or the oldest.
fn target<'k>(known: &'k mut PoolRollout, revision: &str, is_begun: bool) -> Option<&'k mut RolloutTarget> {
    let targets = &mut known.targets;
    if let Some(index) = targets.iter().position(|target| target.revision == revision) {
        return targets.get_mut(index);
    }
    if targets.len() >= MAX_TARGETS && is_begun {
        targets.remove(targets.iter().position(|target| !target.begun).unwrap_or_default());
    }
    if targets.len() >= MAX_TARGETS {
        return None;
    }
    targets.push(RolloutTarget { revision: revision.to_owned(), ..RolloutTarget::default() });
    targets.last_mut()
}

pub fn recorded(policy: &ClusterGpuPolicy) -> (&[Slot], &[PoolRollout]) {
    policy.status.as_ref().map(|status| (&*status.rollout.slots, &*status.rollout.pools)).unwrap_or_default()
}

fn retry_of(policy: &ClusterGpuPolicy) -> &str {
    let value = policy.annotations().get(keys::RETRY).map(String::as_str).unwrap_or_default();
    value.get(..MAX_RETRY).unwrap_or(value)
}

fn state_of(slot: &Slot, world: &World) -> SlotState {
    match world.gpu_nodes.get(&slot.node).filter(|gpu_node| gpu_node.uid().as_ref() == Some(&slot.uid)) {
        Some(gpu_node) if gpu_node.spec.updates_begun < slot.update => SlotState::Unused,
        Some(gpu_node) if gpu_node.spec.updates_begun == slot.update && gpu_node.spec.rollout.is_some() => {
            SlotState::InUse
        }
        Some(_) => SlotState::Spent,
        None if world.unreadable_gpu_nodes.contains(&slot.node) => SlotState::InUse,
        None => SlotState::Unknown(slot.since.as_ref().map_or(Timestamp::MIN, |since| later(since.0, UNKNOWN_AT_MOST))),
    }
}
