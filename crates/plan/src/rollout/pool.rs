//! The rollout of a pool: which revisions each node's labels should name. A node without any gets the wanted ones immediately.

mod joining;
mod last_update;

use std::collections::BTreeSet;

use gpu_operator_crd::{
    NodeName, PoolName,
    gpunode::{DisruptionScope, Rollout, RolloutStep, StageRevisions},
    policy::OnFailure,
    reason::Reason,
};

use crate::{
    assess::{Assessment, PoolMembers, holders, member::Member},
    desired::has_nothing_else,
    note::Note,
    rollout::{
        allocation,
        change::{Change, daemon_sets_exist, driver_awaits_users, must_release},
        decision::{Decision, PoolDecision},
        failures::{self, Failures},
        goal::{Goals, Next, Waves},
        ledger::Ledger,
        preflight::{self, Preflight, Preflights},
        recreate_pods::restore_mig_layouts,
        runtime_restart::RuntimeRestartLock,
        terms::{Budgets, Terms},
        update::{
            WAITS_FOR_BUDGET, begin, continue_update, give_back, joins, keep_or_restore, reported_users, settle, users,
        },
    },
    world::{GpuPods, NodeFacts, World},
};

pub struct PoolUpdates<'f> {
    pub name: &'f PoolName,
    /// Without the settled ones.
    members: &'f [Assessment<'f>],
    world: &'f World,
    terms: Terms<'f>,
    goals: Goals,
    waves: Waves,
    preflights: Preflights,
    /// Whether as many updates have failed as the strategy allows, or updates reboot nodes.
    is_halted: bool,
    /// Nodes whose update had failed until now.
    recovered: BTreeSet<NodeName>,
    pub decision: PoolDecision,
    runtime: RuntimeRestartLock,
    pub awaits_slot: bool,
    /// Why no update in the pool begins, if one is pending.
    pub waits_for: String,
    /// Members with another revision that are not being updated.
    pub waiting: Vec<&'f Member<'f>>,
}

impl<'f> PoolUpdates<'f> {
    /// Decides on all nodes whose update is not pending: they have, or immediately get, the wanted revision, or are being updated. `others`
    /// are all nodes of the fleet but the settled ones.
    pub fn begin(
        name: &'f PoolName,
        all: &'f PoolMembers<'f>,
        others: &[&NodeFacts],
        world: &'f World,
        terms: Terms<'f>,
        ledger: &mut Ledger<'_>,
    ) -> Self {
        let members = &*all.assessed;
        ledger.enter(name, members);
        let (goals, clock) = (Goals::of(ledger.pool(name), members), terms.clock);
        let has_failed = |member: &Member<'_>| ledger.failed(name).contains(&member.node.name);
        let mut updates = Self {
            name,
            members,
            world,
            waves: Waves::of(terms.strategy.canary.as_ref(), all, &goals, has_failed, clock),
            terms,
            goals,
            preflights: Preflights::default(),
            is_halted: false,
            recovered: BTreeSet::new(),
            decision: PoolDecision::default(),
            runtime: RuntimeRestartLock::of(name, all, others, world, clock),
            awaits_slot: false,
            waits_for: String::new(),
            waiting: Vec::new(),
        };
        updates.ask_for_waiting_drivers();
        updates.count_failures(ledger);
        for assessed in members {
            updates.decide_on(assessed, ledger);
        }
        updates
    }

    /// Halts the rollout after too many failures, or rolls it back.
    fn count_failures(&mut self, ledger: &mut Ledger<'_>) {
        let Failures { nodes: failures, recovered } =
            failures::of(self.name, self.members, &self.goals, &self.terms, ledger);
        self.recovered = recovered;
        self.decision.failed = failures.len();
        let most = usize::try_from(self.terms.strategy.max_failures.unwrap_or(1)).unwrap_or(usize::MAX);
        let rebooted = failures::rebooted(ledger.pool(self.name));
        let has_failed = failures.len() >= most;
        self.is_halted = has_failed || rebooted.is_some();
        let cause = failures.into_values().next().filter(|_| has_failed);
        let is_back = self.goals.rolled_back;
        let has_moved = || {
            let mut updates = self.members.iter().filter_map(|assessed| self.goals.last_update(&assessed.member));
            updates.any(|last_update| last_update.from != StageRevisions::default())
        };
        let turns_back = |_: &_| self.terms.strategy.on_failure == Some(OnFailure::RollBack) && !is_back && has_moved();
        if let Some(cause) = cause.as_ref().filter(turns_back) {
            ledger.roll_back(self.name, cause);
        } else if let Some(cause) = cause.or(rebooted) {
            self.decision.halted = Some(Note::new(Reason::RolloutHalted, cause));
            return;
        }
        if let Some(pool) = ledger.pool(self.name).filter(|pool| !pool.rolled_back.is_empty()) {
            let message = format!(
                "the nodes of the pool return to their previous revision because of {}; change the policy or, to try again, run {}",
                pool.rolled_back,
                ledger.retry_command()
            );
            self.decision.halted = Some(Note::new(Reason::RolledBack, message));
        }
    }

    /// The probe releases the driver only if the driver's container can start then.
    fn ask_for_waiting_drivers(&mut self) {
        let members = self.members.iter().map(|assessed| &assessed.member);
        for member in members.filter(|member| driver_awaits_users(member, self.terms.clock)) {
            self.decision.ask_again |= member.gpu_pods.is_some_and(GpuPods::use_driver);
            if member.gpu_pods.is_none() {
                self.decision.ask(member);
            }
        }
    }

    fn decide_on(&mut self, assessed: &'f Assessment<'f>, ledger: &mut Ledger<'_>) {
        let Assessment { member, verdict, .. } = assessed;
        let goal = member.want().map(|want| self.goals.of_member(member, want));
        let decision = match (goal, member.rollout()) {
            // The wanted revisions are unknown: the node keeps its revisions, or gets its previous ones back.
            (None, rollout) => keep_or_restore(member, rollout, &self.terms),
            (Some(_), None) if joins(member) && self.holds_back(ledger) => {
                let Some(decision) = self.proven(member) else {
                    self.waiting.push(member);
                    return;
                };
                decision
            }
            (Some(goal), None) if has_nothing_else(&member.have, &goal) => {
                let installed = self.first_installation(member, ledger);
                let decision = self.restart_in_turn(settle(member, goal.clone(), self.terms.clock), member);
                let is_back = member.want() != Some(&goal);
                let back = is_back.then(|| Note::new(Reason::RolloutPending, ROLLED_BACK));
                Decision { note: decision.note.or(back), last_update: installed, ..decision }
            }
            (Some(goal), rollout) if !daemon_sets_exist(&goal, &self.world.daemon_sets) => {
                let message = "update pending: the DaemonSets of the new revision do not exist yet";
                let note = Some(Note::new(Reason::RolloutPending, message));
                Decision { note, ..keep_or_restore(member, rollout, &self.terms) }
            }
            (Some(_), Some(rollout)) if self.is_given_back(rollout) => {
                let why = self.terms.suspended().unwrap_or(HALTED);
                give_back(rollout, Note::new(Reason::RolloutPending, why))
            }
            (Some(goal), Some(rollout)) => {
                let change = Change::of(member, goal, &self.world.daemon_sets);
                let decision = continue_update(member, verdict, change, rollout, &self.terms, &mut self.decision);
                self.restart_in_turn(decision, member)
            }
            (Some(_), None) => {
                self.waiting.push(member);
                return;
            }
        };
        if decision.failed && !member.node.is_being_removed() {
            ledger.fail(member);
        }
        self.insert(member, decision, ledger);
    }

    /// A halt gives back every node that has nothing new yet, a pause those from which no pod has been evicted and whose GPUs are not
    /// released.
    fn is_given_back(&self, rollout: &Rollout) -> bool {
        match rollout.step {
            RolloutStep::Await => self.is_halted || self.terms.is_paused && !rollout.evicting,
            RolloutStep::Release => self.is_halted,
            RolloutStep::Replace => false,
        }
    }

    fn restart_in_turn(&mut self, decision: Decision, member: &Member<'_>) -> Decision {
        let (labels, note) = self.runtime.allowed(member, decision.labels);
        let gets_its_turn = labels.toolkit != member.have.toolkit;
        let rollout = decision.rollout.map(|rollout| if gets_its_turn { self.terms.again(&rollout) } else { rollout });
        Decision { labels, rollout, note: decision.note.or(note), ..decision }
    }

    /// A slot for an update that does not begin is spent, so that it can be freed.
    fn insert(&mut self, member: &Member<'_>, mut decision: Decision, ledger: &Ledger<'_>) {
        let (labels, held) = allocation::hold(member, decision.labels, &self.world.daemon_sets);
        (decision.labels, decision.note) = (labels, held.or(decision.note));
        decision.updates_begun = ledger.slot_of(member).map_or_else(|| member.updates_begun(), |slot| slot.update);
        let scope = decision.rollout.as_ref().map(|rollout| rollout.scope);
        decision.cordon = self.terms.cordon() && scope == Some(DisruptionScope::GpuPods);
        if decision.last_update.is_none() {
            decision.last_update = self.last_update(member, &decision);
        }
        decision.not_before =
            decision.not_before.or_else(|| member.not_before().filter(|_| decision.rollout.is_none()));
        self.decision.nodes.insert(member.node.name.clone(), decision);
    }

    pub fn take_turn(&mut self, member: &'f Member<'f>, ledger: &mut Ledger<'_>, budgets: &mut Budgets<'f>) {
        let decision = self.turn_of(member, ledger, budgets);
        let decision = self.restart_in_turn(decision, member);
        self.insert(member, decision, ledger);
    }

    fn turn_of(&mut self, member: &'f Member<'f>, ledger: &mut Ledger<'_>, budgets: &mut Budgets<'f>) -> Decision {
        let Some(want) = member.want().map(|want| self.goals.of_member(member, want)) else {
            return keep_or_restore(member, None, &self.terms);
        };
        let clock = self.terms.clock;
        // What has been requested stays so while the node waits.
        let settle = |revisions: StageRevisions| {
            let settled = settle(member, revisions, clock);
            Decision { report_holders: settled.report_holders || holders::is_requested(member), ..settled }
        };
        let pending = |message: &str| Decision {
            note: Some(Note::new(Reason::RolloutPending, message)),
            ..settle(member.have.clone())
        };
        if member.node.is_being_removed() {
            return settle(member.have.clone());
        }
        if joins(member) {
            return self.install_in_turn(member, want, ledger, budgets);
        }
        let change = Change::of(member, want, &self.world.daemon_sets);
        // A failed node without allocatable units has no workload to disturb, so it is updated immediately, but not to what has failed.
        let has_nothing_to_lose = member.was_failing() && member.allocatable() == 0;
        if has_nothing_to_lose && member.external.by_claims().is_none() && !self.is_halted {
            let users = change.needs_idle_gpus.then(|| users(member, &mut self.decision)).flatten();
            return match users {
                Some(note) => Decision { note: Some(note), report_holders: true, ..settle(member.have.clone()) },
                None => Decision { release: change.reloads_driver || must_release(member, clock), ..settle(change.to) },
            };
        }
        if let Some(why) = self.not_yet(member, ledger) {
            return pending(&why);
        }
        if let Some(why) = self.stopped() {
            self.waits_for = if why == HALTED { self.halted() } else { why.to_owned() };
            return pending(why);
        }
        // It needs no window and no slot, because it disturbs nothing.
        let preflight = self.preflight(member, &change.to);
        if matches!(preflight, Preflight::Failed(_)) {
            self.waits_for = self.halted();
            return pending(HALTED);
        }
        if let Some(why) = self.not_now() {
            self.waits_for.clone_from(&why);
            return pending(&why);
        }
        let has_slot = ledger.slot_of(member).is_some();
        if !has_slot && !budgets.allow(member) {
            self.awaits_slot = true;
            // Its status does not change with the updates of other nodes.
            let users = (change.needs_idle_gpus && !self.terms.cordon()).then(|| reported_users(member)).flatten();
            return users.map_or_else(
                || pending(WAITS_FOR_BUDGET),
                |note| Decision { note: Some(note), ..settle(member.have.clone()) },
            );
        }
        if !member.node.ready || member.node.deleting {
            // The node's own reason explains it.
            return settle(member.have.clone());
        }
        if let Preflight::Underway(why) = preflight {
            // The others wait for this one.
            budgets.take(member);
            self.waits_for.clone_from(&why);
            return pending(&why);
        }
        if change.needs_idle_gpus
            && !self.terms.cordon()
            && let Some(note) = users(member, &mut self.decision)
        {
            // From now on the probe reports when they have ended.
            return Decision { note: Some(note), report_holders: true, ..settle(member.have.clone()) };
        }
        let decision = begin(member, change, &self.terms, &mut self.decision);
        if decision.rollout.is_none() {
            return decision;
        }
        if !has_slot {
            ledger.claim(member, clock);
            budgets.take(member);
        }
        let rollout = ledger.begin(member, clock);
        Decision { last_update: Some(self.begun_update(member, rollout)), ..decision }
    }

    /// Returns why no update begins until a user or a recovery changes that.
    fn stopped(&mut self) -> Option<&'static str> {
        if let Some(why) = self.terms.suspended() {
            return Some(why);
        }
        if self.terms.lacks_right() {
            self.decision.halted.get_or_insert_with(|| Note::new(Reason::RolloutHalted, LACKS_RIGHT));
        }
        (self.is_halted || self.terms.lacks_right()).then_some(HALTED)
    }

    /// Returns the message on the policy for [`HALTED`].
    fn halted(&self) -> String {
        format!("update pending: the rollout of pool {} is halted", self.name)
    }

    /// Whether the images of a revision permit a node to move to it; halts the rollout if not.
    fn preflight(&mut self, member: &Member<'_>, want: &StageRevisions) -> Preflight {
        let Self { members, goals, world, terms: Terms { progress_deadline: limit, clock, .. }, .. } = self;
        let (limit, clock) = (*limit, *clock);
        let preflight = self.preflights.of(member, want, preflight::Pool { members, goals, world, limit, clock });
        if let Preflight::Failed(why) = &preflight {
            self.decision.halted.get_or_insert_with(|| Note::new(Reason::RolloutHalted, why.clone()));
        }
        preflight
    }

    /// Returns why no update in the pool begins at present, whatever the budgets.
    fn not_now(&mut self) -> Option<String> {
        match self.waves.next() {
            Next::Canary | Next::Rest => self.terms.windows.closed(),
            Next::Underway => Some("update pending: the canary nodes of this pool are being updated".to_owned()),
            Next::Soaking(until) => {
                Some(format!("update pending: the canary nodes of this pool have to work until {until}"))
            }
        }
    }

    /// Returns why the update of this node does not begin at present.
    fn not_yet(&mut self, member: &Member<'_>, ledger: &Ledger<'_>) -> Option<String> {
        if ledger.failed(self.name).contains(&member.node.name) {
            return Some(format!(
                "update pending: the last one did not end by its deadline; to attempt it again, run {}",
                ledger.retry_command()
            ));
        }
        let not_before = member.not_before().filter(|at| self.terms.cordon() && !self.terms.clock.reached(*at))?;
        Some(format!(
            "update pending: the pods that use the GPUs of this node did not end in time; the next attempt begins at {not_before}"
        ))
    }

    pub fn end(mut self, ledger: &mut Ledger<'_>) -> PoolDecision {
        let (members, clock) = (self.members, self.terms.clock);
        self.decision.ask_again |= self.runtime.waits_for_entry;
        let recreated = members
            .iter()
            .filter_map(|assessed| self.runtime.pod_to_recreate(&assessed.member, &self.world.daemon_sets, clock));
        self.decision.delete_pods.extend(recreated);
        let halted = self.runtime.halted().map(|why| Note::new(Reason::RolloutHalted, why));
        self.decision.halted = self.decision.halted.or(halted);
        self.decision.preflight_pods = self.preflights.pods;
        if self.decision.nodes.values().all(|decision| decision.rollout.is_none()) {
            restore_mig_layouts(members, clock, &mut self.decision);
            let remains = |assessed: &Assessment<'_>| assessed.member.node.ready && assessed.member.is_outdated();
            // It may have been rolled back in this pass.
            let is_stopped =
                ledger.pool(self.name).is_some_and(|pool| !pool.failed.is_empty() || !pool.rolled_back.is_empty());
            if !is_stopped && !members.iter().any(remains) {
                ledger.complete(self.name);
            }
        }
        ledger.know(self.name, &self.goals);
        self.decision
    }
}

/// Halts a pool whose pods may not be evicted.
const LACKS_RIGHT: &str = "gpuPods.mode is Evict, and this installation may not evict pods: install the chart with operator.evictPods: true, or write mode: Await";
const HALTED: &str = "update pending: the rollout of this pool is halted; see condition Stalled of the policy";
const ROLLED_BACK: &str =
    "update pending: the rollout of this pool was rolled back; see condition Stalled of the policy";
