//! The update of one node, step by step: await the pods and programs that use its GPUs, release them, install the new revision. A step is
//! completed, given up with the node as before, or fails at its deadline.

use gpu_operator_crd::{
    Phase,
    gpunode::{DisruptionScope, Rollout, RolloutStep, StageRevisions},
    keys,
    policy::Stage,
    reason::Reason,
    report::NvmlState,
};

use super::{
    change::{Change, driver_awaits_programs, has_or_had, must_release},
    decision::{Decision, PoolDecision},
    eviction::{self, Eviction, Evictions},
    terms::Terms,
};
use crate::{
    assess::{
        holders::{self, Blocker, Holders},
        member::Member,
        verdict::Verdict,
    },
    clock::Clock,
    note::Note,
    revision,
    time::later,
    world::{GpuPod, PodFacts, Role},
};

/// The beginning of messages on what still uses the GPUs.
const RELEASING: &str = "releasing the GPUs:";

/// The message names no other node: otherwise each turn would change the status of every node.
pub const WAITS_FOR_BUDGET: &str =
    "update pending: rollout.maxParallel and rollout.maxUnavailable limit how many nodes are updated at a time";

/// Whether a node has nothing of this operator yet.
pub fn joins(member: &Member<'_>) -> bool {
    member.have == StageRevisions::default()
}

/// Restores labels that were given up for an update that cannot continue. While the wanted revisions are unknown, as after a reboot, an update
/// is neither continued nor, before its deadline, given up.
pub fn keep_or_restore(member: &Member<'_>, rollout: Option<&Rollout>, terms: &Terms<'_>) -> Decision {
    let unknown = member.target.is_unknown();
    let release = unknown && member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    if let Some(rollout) = rollout.filter(|rollout| terms.is_over(rollout)) {
        let is_replaced = rollout.step == RolloutStep::Replace;
        let labels = if is_replaced { &member.have } else { &rollout.from };
        return Decision {
            labels: labels.clone(),
            failed: rollout.step != RolloutStep::Await,
            release,
            ..Decision::default()
        };
    }
    match rollout.filter(|_| !unknown) {
        Some(rollout) if rollout.step != RolloutStep::Replace => {
            Decision { labels: rollout.from.clone(), ..Decision::default() }
        }
        _ => Decision {
            labels: member.have.clone(),
            rollout: rollout.cloned(),
            release,
            report_holders: unknown && holders::is_requested(member),
            pauses_clients: unknown && member.node.labels.contains_key(keys::CLIENTS),
            ..Decision::default()
        },
    }
}

/// For a node that has, or immediately gets, the wanted revisions.
pub fn settle(member: &Member<'_>, want: StageRevisions, clock: &Clock) -> Decision {
    // While the driver's container waits for programs that use the driver, the node's reason names them.
    let report_holders = driver_awaits_programs(member, clock);
    Decision { release: must_release(member, clock), labels: want, report_holders, ..Decision::default() }
}

/// A node whose update is given up before anything new is installed: it gets back what it had.
pub fn give_back(rollout: &Rollout, note: Note) -> Decision {
    Decision { labels: rollout.from.clone(), note: Some(note), ..Decision::default() }
}

pub fn continue_update(
    member: &Member<'_>,
    verdict: &Verdict,
    change: Change,
    rollout: &Rollout,
    terms: &Terms<'_>,
    pool: &mut PoolDecision,
) -> Decision {
    let clock = terms.clock;
    if rollout.step != RolloutStep::Replace && rollout.from == change.to {
        return settle(member, change.to, clock);
    }
    if rollout.step == RolloutStep::Await {
        return first_step(member, change, rollout, terms, pool);
    }
    if is_done(member, verdict, &change.to) {
        return settle(member, change.to, clock);
    }
    // If the policy changed during the update, what is installed may have to be removed first.
    if change.needs_idle_gpus {
        return release(member, change, rollout, terms, pool);
    }
    // A toolkit that restarts the runtime follows in its turn.
    let want = &change.to;
    let follows = rollout.step == RolloutStep::Replace && member.have.toolkit == rollout.from.toolkit;
    let have = StageRevisions { toolkit: want.toolkit.clone(), ..member.have.clone() };
    let is_another = if follows { have != *want } else { member.have != *want };
    let waits_for_others = member.status().is_some_and(|status| status.reason() == Some(Reason::RuntimeTurnPending));
    if terms.is_over(rollout) && !is_another && !waits_for_others {
        return Decision { failed: true, ..settle(member, change.to, clock) };
    }
    let rollout = terms.go_on(rollout, RolloutStep::Replace, is_another);
    replace(member, change, rollout, terms)
}

/// Takes the GPUs from kubelet, so that no further pod gets one, and looks again for pods and programs that use them. The node gets back
/// what it had if there are some, unless they are pods of a DaemonSet that are evicted now.
fn release(
    member: &Member<'_>,
    change: Change,
    rollout: &Rollout,
    terms: &Terms<'_>,
    pool: &mut PoolDecision,
) -> Decision {
    let clock = terms.clock;
    let from = has_or_had(member).clone();
    let scope = change.scope();
    let rollout = terms.go_on(&Rollout { from, scope, ..rollout.clone() }, RolloutStep::Release, false);
    let users = member.gpu_pods.map(|pods| pods.users.as_slice());
    if users.is_none() {
        pool.questions.insert(member.node.name.clone());
    }
    let (users, is_known) = (users.unwrap_or_default(), users.is_some());
    let evicts = terms.evicts() && !users.is_empty() && !users.iter().any(eviction::ends_first);
    if !users.is_empty() {
        pool.ask_again = true;
        if !evicts {
            return give_back(&rollout, in_use_by(users));
        }
    }
    let Evictions { pods, note } = eviction::of(users, &terms.strategy.gpu_pods, terms.refused_evictions, clock);
    if evicts && clock.reached(later(rollout.since.0, terms.timeout.max(terms.progress_deadline))) {
        return Decision { not_before: Some(clock.later(terms.timeout)), ..give_back(&rollout, note) };
    }
    if !evicts && terms.is_over(&rollout) {
        return Decision { labels: rollout.from, failed: true, ..Decision::default() };
    }
    let releasing = |note: Note| releasing(member, &change, &rollout, Some(note), clock);
    let because = |message: String| Note::new(Reason::ReleasingGpus, message);
    if let Some(holder) = holder(member, change.reloads_driver) {
        return releasing(because(holder));
    }
    if evicts {
        let evictions = pods.into_iter().map(Eviction::of).collect();
        return Decision { evictions, ..releasing(note) };
    }
    if !is_known {
        return releasing(because("checking for pods that use a GPU of this node".to_owned()));
    }
    if let Holders::Listed(blockers) = Holders::of(member) {
        // A program may be listed for some seconds after its end.
        let waits = !clock.passed(rollout.since.0, holders::GRACE);
        if let Some(Blocker { name, .. }) = blockers.iter().find(|blocker| waits || blocker.gives_way) {
            pool.ask_again = true;
            return releasing(because(format!("{RELEASING} waiting for {name} to end")));
        }
        if !blockers.is_empty() {
            return Decision { report_holders: true, ..give_back(&rollout, holders::note(blockers.iter())) };
        }
    }
    if let Some(waits) = change.waits.clone() {
        return releasing(waits);
    }
    let rollout = terms.go_on(&rollout, RolloutStep::Replace, false);
    replace(member, change, rollout, terms)
}

fn releasing(member: &Member<'_>, change: &Change, rollout: &Rollout, note: Option<Note>, clock: &Clock) -> Decision {
    Decision {
        labels: StageRevisions { mps: None, device_plugin: None, ..rollout.from.clone() },
        rollout: Some(rollout.clone()),
        release: change.reloads_driver || must_release(member, clock),
        report_holders: true,
        pauses_clients: true,
        note,
        ..Decision::default()
    }
}

fn replace(member: &Member<'_>, change: Change, rollout: Rollout, terms: &Terms<'_>) -> Decision {
    Decision {
        labels: change.to,
        release: change.reloads_driver || must_release(member, terms.clock),
        pauses_clients: rollout.scope == DisruptionScope::GpuPods,
        rollout: Some(rollout),
        report_holders: driver_awaits_programs(member, terms.clock),
        ..Decision::default()
    }
}

/// A missing or unhealthy GPU is not caused by the new revision, and does not halt the pool.
fn is_done(member: &Member<'_>, verdict: &Verdict, want: &StageRevisions) -> bool {
    let arrived = verdict.phase == Phase::Ready || verdict.reason.counts_apart() || verdict.lacks_a_gpu();
    member.have == *want && member.stack_proven() && arrived
}

/// Returns which of this operator's pods still offers or uses the GPUs, or may be created to do so.
fn holder(member: &Member<'_>, reloads_driver: bool) -> Option<String> {
    let plugins = [Stage::DevicePlugin, Stage::Mps];
    // A pod that was just created may be missing among those that the mirror holds.
    let listed = || member.gpu_pods.into_iter().flat_map(|pods| &pods.plugins);
    let of = |stage| member.pods_of(stage).chain(listed().filter(move |pod| pod.role == Role::Operand(stage)));
    if let Some(pod) = plugins.into_iter().find_map(|stage| of(stage).next()) {
        return Some(format!("{RELEASING} waiting for pod {} to terminate", pod.name));
    }
    let labelled = revision::labelled_revisions(member.node);
    if plugins.into_iter().any(|stage| labelled.get(stage).is_some()) {
        return Some(format!("{RELEASING} removing the device plugin"));
    }
    let answering = member.report.is_some_and(|report| report.nvml.state == NvmlState::Answering);
    let probe_runs = member.probe_pod().is_none_or(PodFacts::running);
    let message = if probe_runs {
        "waiting for the probe to release the driver"
    } else {
        "the probe has to release the driver, but its pod is not running; check DaemonSet nodestack-nvml-probe"
    };
    (reloads_driver && answering).then(|| message.to_owned())
}

/// Begins the update once nothing uses the node's GPUs. Without a cordon, or if no window is open any more and no eviction has begun, it is
/// given up.
fn await_idle(
    member: &Member<'_>,
    change: &Change,
    rollout: &Rollout,
    terms: &Terms<'_>,
    pool: &mut PoolDecision,
) -> Decision {
    let clock = terms.clock;
    if let Some(why) = terms.windows.closed().filter(|_| !rollout.evicting) {
        let note = Some(Note::new(Reason::RolloutPending, why));
        return Decision { note, ..settle(member, member.have.clone(), clock) };
    }
    let decision = |rollout: Option<&Rollout>, note: Note| Decision {
        release: must_release(member, clock),
        labels: member.have.clone(),
        rollout: rollout.cloned(),
        report_holders: true,
        note: Some(note),
        ..Decision::default()
    };
    let listing = || {
        let message = "update pending: the programs that hold the GPUs of this node are being listed";
        Note::new(Reason::RolloutPending, message)
    };
    let deadline = rollout.deadline.as_ref().map_or_else(|| later(rollout.since.0, terms.timeout), |time| time.0);
    let closing = terms.windows.closing().filter(|_| !rollout.evicting);
    let latest = closing.filter(|closing| !clock.ends_by(clock.until(deadline), *closing)).unwrap_or(deadline);
    let blocked = |note: Note, pool: &mut PoolDecision| {
        pool.ask_again = true;
        if !terms.cordon() {
            return decision(None, note);
        }
        if clock.reached(deadline) {
            let not_before = Some(clock.later(terms.timeout));
            return Decision { not_before, ..decision(None, note) };
        }
        let message = format!("{}; meanwhile the node is cordoned, until {latest} at the latest", note.message);
        decision(Some(rollout), Note { message, ..note })
    };
    let reported = reported_users(member).filter(|_| !terms.evicts());
    if let Some(users) = &reported
        && !member.is_unconfirmed
    {
        return blocked(users.clone(), pool);
    }
    match member.gpu_pods.map(|pods| &pods.users) {
        None => {
            pool.questions.insert(member.node.name.clone());
            return match reported {
                Some(users) => blocked(users, pool),
                None => decision(Some(rollout), listing()),
            };
        }
        Some(users) if terms.evicts() && !users.is_empty() => {
            let Evictions { pods, note } =
                eviction::of(users, &terms.strategy.gpu_pods, terms.refused_evictions, clock);
            // Those of DaemonSets follow in step Release.
            if !rollout.evicting || pods.is_empty() || users.iter().any(eviction::ends_first) {
                let slowest = pods.iter().max_by_key(|pod| pod.grace).filter(|_| !rollout.evicting);
                if let Some(pod) = slowest.filter(|pod| !clock.ends_by(pod.grace, latest)) {
                    let is_last = member.rollout().is_some() && !clock.ends_by(pod.grace, deadline);
                    let not_before = is_last.then(|| clock.later(terms.timeout));
                    return Decision { not_before, ..decision(None, eviction::too_late(pod, latest)) };
                }
                let decision = blocked(note, pool);
                // The record of the update and the cordon come first.
                let may_begin = member.rollout().is_some() && member.node.cordoned && decision.rollout.is_some();
                return if may_begin { evict(terms, rollout, &pods, decision) } else { decision };
            }
        }
        Some(pods) if !pods.is_empty() => return blocked(reported.unwrap_or_else(|| in_use_by(pods)), pool),
        Some(_) => {}
    }
    match Holders::of(member) {
        Holders::Listed(blockers) if blockers.iter().any(|blocker| !blocker.gives_way) => {
            blocked(holders::note(blockers.iter().filter(|blocker| !blocker.gives_way)), pool)
        }
        Holders::Unknown if holders::can_be_listed(member) && !clock.passed(rollout.since.0, holders::GRACE) => {
            pool.ask_again = true;
            decision(Some(rollout), listing())
        }
        // Pods may have been bound to the node before it was cordoned: once it is, they are listed again.
        Holders::Listed(_) | Holders::Unknown if terms.cordon() && !member.node.cordoned => {
            decision(Some(rollout), Note::new(Reason::RolloutPending, "update pending: the node is being cordoned"))
        }
        Holders::Listed(_) | Holders::Unknown => {
            let rollout = terms.go_on(rollout, RolloutStep::Release, false);
            releasing(member, change, &rollout, None, clock)
        }
    }
}

/// Asks the API server about the evictions of all pods first, records that they begin, and then begins.
fn evict(terms: &Terms<'_>, rollout: &Rollout, pods: &[&GpuPod], decision: Decision) -> Decision {
    if rollout.evicting {
        let evictions = pods.iter().filter(|pod| eviction::ends_first(pod)).map(|pod| Eviction::of(pod)).collect();
        return Decision { evictions, ..decision };
    }
    let is_allowed = |pod: &&&GpuPod| terms.allowed_evictions.get(&pod.name) == Some(&pod.uid);
    let evictions: Vec<_> = pods.iter().filter(|pod| !is_allowed(pod)).map(|pod| Eviction::check(pod)).collect();
    let evicting = !pods.is_empty() && evictions.is_empty();
    let rollout = decision.rollout.map(|rollout| Rollout { evicting, ..rollout });
    Decision { rollout, evictions, ..decision }
}

pub fn begin(member: &Member<'_>, change: Change, terms: &Terms<'_>, pool: &mut PoolDecision) -> Decision {
    let rollout = terms.enter(RolloutStep::Await, change.scope(), member.have.clone());
    first_step(member, change, &rollout, terms, pool)
}

fn first_step(
    member: &Member<'_>,
    change: Change,
    rollout: &Rollout,
    terms: &Terms<'_>,
    pool: &mut PoolDecision,
) -> Decision {
    if change.needs_idle_gpus {
        return await_idle(member, &change, rollout, terms, pool);
    }
    let rollout = Rollout { scope: change.scope(), ..rollout.clone() };
    replace(member, change, terms.go_on(&rollout, RolloutStep::Replace, false), terms)
}

fn in_use<'p>(count: u32, names: impl Iterator<Item = &'p String>) -> Note {
    let message = format!("update pending until no pod uses a GPU of this node; pods that use one: {count}");
    Note { reason: Reason::GpuPodsInUse, message, waits_on: names.take(10).cloned().collect() }
}

fn in_use_by(pods: &[GpuPod]) -> Note {
    in_use(u32::try_from(pods.len()).unwrap_or(u32::MAX), pods.iter().map(|pod| &pod.name))
}

/// Returns a note on the pods that use GPUs according to the probe.
pub fn reported_users(member: &Member<'_>) -> Option<Note> {
    holders::reported_pods(member).map(|pods| in_use(pods.count, pods.names.iter()))
}

/// Returns a note on the pods that use the node's GPUs, or asks for them. The API server has to confirm that there are none, and now and then
/// that there are some.
pub fn users(member: &Member<'_>, pool: &mut PoolDecision) -> Option<Note> {
    let reported = reported_users(member);
    if reported.is_some() && !member.is_unconfirmed {
        return reported;
    }
    let Some(pods) = member.gpu_pods.map(|pods| &pods.users) else {
        pool.ask(member);
        return reported.or_else(|| Some(Note::new(Reason::RolloutPending, WAITS_FOR_BUDGET)));
    };
    pool.ask_again |= !pods.is_empty();
    (!pods.is_empty()).then(|| reported.unwrap_or_else(|| in_use_by(pods)))
}
