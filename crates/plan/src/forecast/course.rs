//! The course of a forecast: the plan is computed and what it begins ends, until it begins nothing more.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNodeSpec, NodeName, Phase, PolicyName, PoolName,
    gpunode::{DisruptionScope, StageRevisions},
    policy::Stage,
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    ending::Event,
    inputs::Inputs,
    result::{Forecast, Outcome, PodOutcome, StageChange, Update, Waiting},
};
use crate::{
    assess::{self, AssessedFleet, Assessment, PolicyMembers, PoolMembers, member::Member, verdict::Verdict},
    clock::Clock,
    desired::{self, variant::Variants},
    ground::Ground,
    inventory::{
        self,
        membership::{Unmanaged, name_of},
    },
    note::Note,
    output::gpu_node::member_spec,
    revision,
    rollout::{
        self,
        decision::{Decision, PolicyDecision},
        eviction::{Fate, fate},
        goal::Goals,
        ledger::Ledger,
        terms::Terms,
    },
    world::{GpuPod, World},
};

/// The maximum number of plans: an update begins and ends, and may be given up in between.
const ROUNDS_PER_NODE: usize = 4;

struct Course<'a> {
    inputs: Inputs<'a>,
    world: World,
    now: Timestamp,
    /// Nodes that have what they get.
    arrived: BTreeSet<NodeName>,
    /// The waves of the last updates that have ended.
    ended: BTreeMap<PolicyName, u32>,
    updates: BTreeMap<NodeName, (PolicyName, Update)>,
}

#[derive(Default)]
struct Round {
    events: Vec<Event>,
    updates: Vec<(PolicyName, Update)>,
    /// Nodes that are not updated so far.
    waiting: Vec<(PolicyName, Waiting)>,
    /// Updates that are given up.
    given_up: Vec<NodeName>,
    next: Option<Timestamp>,
    /// The number of nodes of each policy.
    nodes: BTreeMap<PolicyName, usize>,
    excluded: Vec<(PolicyName, NodeName)>,
}

pub fn follow(inputs: Inputs<'_>, world: World, policies: &[ClusterGpuPolicy]) -> Vec<Forecast> {
    let rounds = 100 + ROUNDS_PER_NODE * world.gpu_nodes.len();
    let (arrived, ended, updates) = (BTreeSet::new(), BTreeMap::new(), BTreeMap::new());
    let mut course = Course { inputs, world, now: inputs.now, arrived, ended, updates };
    let mut last = course.round();
    // How often only the time has changed since an update began.
    let mut idle = 0;
    for _ in 0..rounds {
        idle = if last.updates.is_empty() { idle } else { 0 };
        let changed = course.pass(&mut last);
        if last.waiting.is_empty() && course.is_over() {
            break;
        }
        if !changed {
            // Updates that are given up are attempted again and again.
            let next = last.next.filter(|next| *next > course.now && idle < course.patience());
            let Some(next) = next else { break };
            course.now = next;
            idle += 1;
        }
        last = course.round();
    }
    policies.iter().map(|policy| course.forecast(name_of(policy), &last)).collect()
}

impl Course<'_> {
    fn round(&self) -> Round {
        let ground = Ground::of(self.inputs.catalogue, &self.world, &self.inputs.settings.namespace);
        let fleet = inventory::take(&ground, &self.world, |_| true);
        let mut variants = Variants::default();
        let fleet = desired::resolve(fleet, &mut variants, self.now);
        let mut fleet = assess::assess(fleet, &[], variants, &Clock::at(self.now));
        let pools = fleet.policies.values_mut().flat_map(|policy| policy.pools.values_mut());
        for assessed in pools
            .flat_map(|pool| &mut pool.assessed)
            .filter(|assessed| self.arrived.contains(&assessed.member.node.name))
        {
            assessed.verdict = Verdict::new(Phase::Ready, Reason::AllGpusAllocatable, "");
        }
        // Nodes do not change with time alone here, only decisions do.
        let clock = Clock::at(self.now);
        let decided = rollout::decide(&fleet, self.inputs.settings.evicts_pods, &clock);
        let mut round = Round { excluded: excluded(&fleet), ..Round::default() };
        for (name, decision) in &decided.policies {
            if let Some((policy, members)) = self.world.policies.get(*name).zip(fleet.policies.get(*name)) {
                self.decided(policy, members, decision, &clock, &mut round);
            }
        }
        round.next = clock.next();
        round
    }

    fn decided(
        &self,
        policy: &ClusterGpuPolicy,
        members: &PolicyMembers<'_>,
        decision: &PolicyDecision<'_>,
        clock: &Clock,
        round: &mut Round,
    ) {
        let name = name_of(policy);
        round.nodes.insert(name.clone(), members.pools.values().map(PoolMembers::count).sum());
        round.events.extend(decision.ledger.clone().map(|content| Event::Ledger(name.clone(), content)));
        let mut ledger = Ledger::of(policy, &self.world, clock);
        for (pool_name, members) in &members.pools {
            let Some(pool) = decision.pools.get(pool_name) else { continue };
            let PoolMembers { settings, assessed, .. } = members;
            ledger.enter(pool_name, assessed);
            let goals = Goals::of(ledger.pool(pool_name), assessed);
            let terms = Terms::of(settings, self.inputs.settings.evicts_pods, &self.world, clock);
            round.events.extend(pool.preflight_pods.iter().map(|(name, pod)| Event::Pulled(name.clone(), pod.clone())));
            for assessed in assessed {
                let member = &assessed.member;
                let goal = member.want().map(|want| goals.of_member(member, want));
                if let Some(decision) = pool.nodes.get(&member.node.name) {
                    self.decided_on(assessed, decision, goal, &terms, round);
                }
            }
        }
    }

    fn decided_on(
        &self,
        assessed: &Assessment<'_>,
        decision: &Decision,
        goal: Option<StageRevisions>,
        terms: &Terms<'_>,
        round: &mut Round,
    ) {
        let member = &assessed.member;
        let (node, policy) = (&member.node.name, name_of(member.policy));
        // The probe is not there to answer.
        let report_holders = member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.report_holders);
        let spec = Box::new(GpuNodeSpec { report_holders, ..member_spec(member, decision) });
        let known = self.updates.get(node).map(|(_, update)| update);
        let lacks = goal.as_ref() != Some(&member.have);
        // What needs no turn is in the labels at once.
        let at_once = || Some(decision.labels.clone()).filter(|labels| *labels != member.have);
        let Some(to) = (if decision.rollout.is_some() { goal } else { at_once() }) else {
            match known {
                Some(_) if member.rollout().is_some() => round.given_up.push(node.clone()),
                None if lacks => round.waiting.push((policy, waiting(assessed, decision))),
                _ => {}
            }
            round.events.push(Event::Recorded(node.clone(), spec, decision.cordon));
            return;
        };
        let update = known.cloned().unwrap_or_else(|| self.update(member, decision, &to, terms));
        round.events.push(if update.blocked_by.is_some() {
            Event::Recorded(node.clone(), spec, decision.cordon)
        } else {
            Event::Arrived(node.clone(), spec, to)
        });
        if known.is_none() {
            round.updates.push((policy, update));
        }
    }

    fn update(&self, member: &Member<'_>, decision: &Decision, to: &StageRevisions, terms: &Terms<'_>) -> Update {
        let scope = decision.rollout.as_ref().map_or(DisruptionScope::Nothing, |rollout| rollout.scope);
        let ended = self.ended.get(&name_of(member.policy)).copied().unwrap_or_default();
        let users = member.gpu_pods.map(|pods| pods.users.as_slice()).unwrap_or_default();
        let users = if scope == DisruptionScope::Nothing { &[] } else { users };
        let pods: Vec<_> = users.iter().map(|pod| outcome(pod, terms, &self.world)).collect();
        let blocking = pods.iter().find(|pod| matches!(pod.outcome, Outcome::Kept | Outcome::Blocked));
        let held = decision.note.as_ref().filter(|note| note.reason == Reason::GpusHeld);
        let is_cordoned = member.node.cordoned && !member.node.own_cordon;
        let by_pod = blocking.map(|PodOutcome { pod, message, .. }| format!("pod {pod}: {message}"));
        Update {
            node: member.node.name.clone(),
            pool: member.pool.name.clone(),
            wave: decision.rollout.is_some().then_some(ended + 1),
            not_before: (self.now > self.inputs.now).then_some(self.now),
            underway: member.rollout().is_some(),
            scope,
            stages: stages(decision.rollout.as_ref().map_or(&member.have, |rollout| &rollout.from), to, &self.world),
            cordon: decision.cordon && !is_cordoned,
            cordoned: is_cordoned,
            pods,
            blocked_by: by_pod.or_else(|| held.map(|note| note.message.clone())),
        }
    }

    /// Ends what a plan has begun. Returns whether that changes anything.
    fn pass(&mut self, round: &mut Round) -> bool {
        let mut changed = !round.given_up.is_empty();
        for (policy, update) in round.updates.drain(..) {
            self.updates.insert(update.node.clone(), (policy, update));
            changed = true;
        }
        for event in round.events.drain(..) {
            if let Event::Arrived(node, ..) = &event {
                self.arrived.insert(node.clone());
                round.given_up.push(node.clone());
            }
            changed |= event.happen(&mut self.world, self.now);
        }
        for node in round.given_up.drain(..) {
            if let Some((policy, update)) = self.updates.get(&node) {
                let last = self.ended.entry(policy.clone()).or_default();
                *last = (*last).max(update.wave.unwrap_or_default());
            }
        }
        changed
    }

    /// Whether all updates that have begun have ended, or are blocked.
    fn is_over(&self) -> bool {
        self.updates.values().all(|(_, update)| update.blocked_by.is_some() || self.arrived.contains(&update.node))
    }

    /// Each blocked update is waited for twice in vain: until its deadline and its next attempt.
    fn patience(&self) -> usize {
        8 + 2 * self.updates.values().filter(|(_, update)| update.blocked_by.is_some()).count()
    }

    fn forecast(&self, policy: PolicyName, last: &Round) -> Forecast {
        let of_policy = |(of, _): &&(PolicyName, _)| *of == policy;
        let mut updates: Vec<_> = self.updates.values().filter(of_policy).map(|(_, update)| update.clone()).collect();
        updates.sort_by(|one, other| (one.wave, &one.node).cmp(&(other.wave, &other.node)));
        Forecast {
            nodes: last.nodes.get(&policy).copied().unwrap_or_default(),
            updates,
            waiting: last.waiting.iter().filter(|(of, _)| *of == policy).map(|(_, waiting)| waiting.clone()).collect(),
            leaving: Vec::new(),
            excluded: last.excluded.iter().filter(|(of, _)| *of == policy).map(|(_, node)| node.clone()).collect(),
            changes: Vec::new(),
            problems: Vec::new(),
            policy,
        }
    }
}

/// Returns the nodes that policies select and whose labels exclude them.
fn excluded(fleet: &AssessedFleet<'_>) -> Vec<(PolicyName, NodeName)> {
    let opted_out = fleet.unmanaged.iter().filter(|node| node.why == Unmanaged::OptedOut);
    opted_out.filter_map(|node| Some((name_of(node.selected_by?), node.node.name.clone()))).collect()
}

fn waiting(assessed: &Assessment<'_>, decision: &Decision) -> Waiting {
    let Assessment { member, verdict, .. } = assessed;
    let (node, pool): (NodeName, PoolName) = (member.node.name.clone(), member.pool.name.clone());
    let of_verdict =
        || Note { reason: verdict.reason, message: verdict.message.clone(), waits_on: verdict.waits_on.clone() };
    let fault = member.target.fault().map(|fault| Note::new(fault.reason, fault.message.clone()));
    let Note { reason, message, waits_on } = fault.or(decision.note.clone()).unwrap_or_else(of_verdict);
    Waiting { node, pool, reason, message, pods: waits_on }
}

/// For a pod of a node that is being updated.
fn outcome(pod: &GpuPod, terms: &Terms<'_>, world: &World) -> PodOutcome {
    let (outcome, message) = match fate(pod, &terms.strategy.gpu_pods, &world.refused_evictions) {
        _ if !terms.evicts() => (Outcome::Awaited, String::new()),
        Fate::Leaving | Fate::Awaited => (Outcome::Awaited, String::new()),
        Fate::Kept(why) => (Outcome::Kept, format!("it {}", why.message(true))),
        Fate::Refused(why) => (Outcome::Blocked, why.to_owned()),
        Fate::Evicted => (Outcome::Evicted, String::new()),
    };
    PodOutcome { pod: pod.name.clone(), outcome, message }
}

fn stages(have: &StageRevisions, to: &StageRevisions, world: &World) -> Vec<StageChange> {
    let image = |stage: Stage, revisions: &StageRevisions| {
        revision::pod_spec(&world.daemon_sets, stage, revisions.get(stage)?)?.containers.first()?.image.clone()
    };
    let differ = Stage::ALL.into_iter().filter(|stage| have.get(*stage) != to.get(*stage));
    differ.map(|stage| StageChange { stage, from: image(stage, have), to: image(stage, to) }).collect()
}
