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

use k8s_openapi::jiff::Timestamp;

use super::{
    change::{Change, driver_awaits_programs, must_release},
    decision::{Decision, PoolDecision, missed_a_gpu_before},
    eviction::{self, Evictions},
    terms::Terms,
};
use crate::{
    assess::{
        holders::{self, Blocker, Holders},
        member::Member,
        verdict::Verdict,
    },
    note::Note,
    revision,
    time::{later, older},
    world::{GpuPod, PodFacts, PodOwner, Role},
};

/// The beginning of messages on what still uses the driver.
const RELEASING: &str = "releasing the GPUs before the driver is replaced:";

/// The message names no other node: otherwise each turn would change the status of every node.
pub const WAITS_FOR_BUDGET: &str =
    "update pending: rollout.maxParallel and rollout.maxUnavailable limit how many nodes are updated at a time";

/// Some revisions may be missing: the node never had them, or a user removed a label. Restoring a label disrupts nothing, because a revision's
/// name includes its driver.
pub fn has_nothing_else(have: &StageRevisions, want: &StageRevisions) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let had = have.get(stage);
        had.is_none() || had == want.get(stage)
    })
}

/// Restores labels that were given up for an update that cannot continue. While the wanted revisions are unknown, as after a reboot, an update
/// is neither continued nor, before its deadline, given up.
pub fn keep_or_restore(member: &Member<'_>, rollout: Option<&Rollout>, terms: &Terms) -> Decision {
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
pub fn settle(member: &Member<'_>, want: StageRevisions, now: Timestamp) -> Decision {
    // While the driver's container waits for programs that use the driver, the node's reason names them.
    let report_holders = driver_awaits_programs(member, now);
    Decision { release: must_release(member, now), labels: want, report_holders, ..Decision::default() }
}

pub fn continue_update(
    member: &Member<'_>,
    verdict: &Verdict,
    change: Change,
    rollout: &Rollout,
    terms: &Terms,
    pool: &mut PoolDecision,
) -> Decision {
    let now = terms.now;
    if rollout.step == RolloutStep::Await && member.have != change.to {
        return await_idle(member, change, rollout, terms, pool);
    }
    let Change { to: want, reloads_driver, needs_idle_gpus } = change;
    if is_done(member, verdict, &want) {
        return settle(member, want, now);
    }
    // A toolkit that restarts the runtime follows in its turn.
    let follows = rollout.step == RolloutStep::Replace && member.have.toolkit == rollout.from.toolkit;
    let have = StageRevisions { toolkit: want.toolkit.clone(), ..member.have.clone() };
    let is_another = if follows { have != want } else { member.have != want };
    let waits_for_others = member.status().is_some_and(|status| status.reason() == Some(Reason::RuntimeTurnPending));
    if terms.is_over(rollout) && !is_another && !waits_for_others {
        return Decision { failed: true, ..settle(member, want, now) };
    }
    let scope = if needs_idle_gpus { DisruptionScope::GpuPods } else { rollout.scope };
    let install = |want: StageRevisions| Decision {
        release: must_release(member, now) || reloads_driver,
        pauses_clients: scope == DisruptionScope::GpuPods,
        labels: want,
        rollout: Some(terms.go_on(&Rollout { scope, ..rollout.clone() }, RolloutStep::Replace, is_another)),
        report_holders: driver_awaits_programs(member, now),
        ..Decision::default()
    };
    if !reloads_driver {
        return install(want);
    }
    // If the policy changed during the update and wants yet another driver, the stages on top of the driver are removed first.
    let is_released = rollout.step == RolloutStep::Release;
    let from = if is_released { rollout.from.clone() } else { member.have.clone() };
    if is_released && terms.is_over(rollout) {
        return Decision { labels: from, failed: true, ..Decision::default() };
    }
    let release = terms.go_on(&Rollout { from: from.clone(), scope, ..rollout.clone() }, RolloutStep::Release, false);
    let releasing = |message: String| Decision {
        labels: StageRevisions { driver: member.have.driver.clone(), ..want.clone() },
        rollout: Some(release.clone()),
        release: true,
        report_holders: true,
        pauses_clients: true,
        note: Some(Note::new(Reason::ReleasingGpus, message)),
        ..Decision::default()
    };
    if let Some(holder) = driver_holder(member, &want) {
        return releasing(holder);
    }
    match member.gpu_pods.map(|pods| &pods.users) {
        None => {
            pool.questions.insert(member.node.name.clone());
            releasing("checking for pods that use a GPU of this node".to_owned())
        }
        Some(pods) if pods.is_empty() => match Holders::of(member) {
            Holders::Listed(blockers) if !blockers.is_empty() => {
                // A program may be listed for some seconds after its end.
                let waits = !older(release.since.0, holders::GRACE, now);
                match blockers.iter().find(|blocker| waits || blocker.gives_way) {
                    Some(Blocker { name, .. }) => {
                        pool.ask_again = true;
                        releasing(format!("{RELEASING} waiting for {name} to end"))
                    }
                    None => Decision {
                        labels: from,
                        report_holders: true,
                        note: Some(holders::note(blockers.iter())),
                        ..Decision::default()
                    },
                }
            }
            Holders::Listed(_) | Holders::Unknown => install(want),
        },
        // The device plugin is gone, so that they get no GPU again.
        Some(pods) if terms.evicts() && pods.iter().all(|pod| pod.owner == PodOwner::DaemonSet) => {
            pool.ask_again = true;
            let pods: Vec<_> = pods.iter().collect();
            let Evictions { pods, note } = eviction::of(&pods, &terms.strategy.gpu_pods, member.refused_evictions, now);
            Decision { evictions: pods, note: Some(note), ..releasing(String::new()) }
        }
        // A GPU pod was started in the meantime: the node gets its revisions back until the pod has terminated.
        Some(pods) => {
            pool.ask_again = true;
            Decision { labels: from, note: Some(in_use_by(pods)), ..Decision::default() }
        }
    }
}

/// A missing or unhealthy GPU is not caused by the new revision, and does not halt the pool.
fn is_done(member: &Member<'_>, verdict: &Verdict, want: &StageRevisions) -> bool {
    let arrived = verdict.phase == Phase::Ready || verdict.reason.counts_apart() || missed_a_gpu_before(verdict);
    member.have == *want && member.stack_proven() && arrived
}

/// Returns which of this operator's pods uses the driver that has to be replaced, or may be created to do so.
fn driver_holder(member: &Member<'_>, want: &StageRevisions) -> Option<String> {
    let plugins = [Stage::DevicePlugin, Stage::Mps];
    // A pod that was just created may be missing among those that the mirror holds.
    let listed = || member.gpu_pods.into_iter().flat_map(|pods| &pods.plugins);
    let of = |stage| member.pods_of(stage).chain(listed().filter(move |pod| pod.role == Role::Operand(stage)));
    let old = |stage| of(stage).find(|pod| pod.revision.as_ref() != want.get(stage));
    if let Some(pod) = plugins.into_iter().find_map(old) {
        return Some(format!("{RELEASING} waiting for pod {} to terminate", pod.name));
    }
    let labelled = revision::labelled_revisions(member.node);
    let is_selected = |stage| labelled.get(stage).is_some_and(|revision| want.get(stage) != Some(revision));
    if plugins.into_iter().any(is_selected) {
        return Some(format!("{RELEASING} removing the device plugin"));
    }
    let answering = member.report.is_some_and(|report| report.nvml.state == NvmlState::Answering);
    let probe_runs = member.probe_pod().is_none_or(PodFacts::running);
    let message = if probe_runs {
        "waiting for the probe to release the driver"
    } else {
        "the probe has to release the driver, but its pod is not running; check DaemonSet nodestack-nvml-probe"
    };
    answering.then(|| message.to_owned())
}

/// Begins the update once nothing uses the node's GPUs. Without a cordon, or if no window is open any more, it is given up.
fn await_idle(
    member: &Member<'_>,
    change: Change,
    rollout: &Rollout,
    terms: &Terms,
    pool: &mut PoolDecision,
) -> Decision {
    let now = terms.now;
    if let Some(why) = terms.windows.closed(pool) {
        let note = Some(Note::new(Reason::RolloutPending, why));
        return Decision { note, ..settle(member, member.have.clone(), now) };
    }
    let decision = |rollout: Option<&Rollout>, note: Note| Decision {
        release: must_release(member, now),
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
    let blocked = |note: Note, pool: &mut PoolDecision| {
        pool.ask_again = true;
        if !terms.cordon() {
            return decision(None, note);
        }
        let deadline = rollout.deadline.as_ref().map_or_else(|| later(rollout.since.0, terms.timeout), |time| time.0);
        if now >= deadline {
            let not_before = Some(later(now, terms.timeout));
            return Decision { not_before, ..decision(None, note) };
        }
        pool.check(deadline);
        let latest = terms.windows.closing().map_or(deadline, |closing| closing.min(deadline));
        let message = format!("{}; meanwhile the node is cordoned, until {latest} at the latest", note.message);
        decision(Some(rollout), Note { message, ..note })
    };
    if let Some(pods) = holders::reported_pods(member).filter(|_| !terms.evicts()) {
        return blocked(in_use(pods.count, pods.names.iter()), pool);
    }
    match member.gpu_pods.map(|pods| &pods.users) {
        None => {
            pool.questions.insert(member.node.name.clone());
            return decision(Some(rollout), listing());
        }
        Some(pods) if terms.evicts() => {
            let pods: Vec<_> = eviction::before_release(pods).collect();
            if !pods.is_empty() {
                let Evictions { pods, note } =
                    eviction::of(&pods, &terms.strategy.gpu_pods, member.refused_evictions, now);
                let decision = blocked(note, pool);
                // The record of the update and the cordon come first.
                let may_begin = member.rollout().is_some() && member.node.cordoned && decision.rollout.is_some();
                return Decision { evictions: if may_begin { pods } else { Vec::new() }, ..decision };
            }
        }
        Some(pods) if !pods.is_empty() => return blocked(in_use_by(pods), pool),
        Some(_) => {}
    }
    match Holders::of(member) {
        Holders::Listed(blockers) if blockers.iter().any(|blocker| !blocker.gives_way) => {
            blocked(holders::note(blockers.iter().filter(|blocker| !blocker.gives_way)), pool)
        }
        Holders::Unknown if holders::can_be_listed(member) && !older(rollout.since.0, holders::GRACE, now) => {
            pool.ask_again = true;
            decision(Some(rollout), listing())
        }
        // Pods may have been bound to the node before it was cordoned: once it is, they are listed again.
        Holders::Listed(_) | Holders::Unknown if terms.cordon() && !member.node.cordoned => {
            decision(Some(rollout), Note::new(Reason::RolloutPending, "update pending: the node is being cordoned"))
        }
        Holders::Listed(_) | Holders::Unknown => replace(member, change, rollout, terms),
    }
}

pub fn begin(member: &Member<'_>, change: Change, terms: &Terms, pool: &mut PoolDecision) -> Decision {
    let rollout = terms.enter(RolloutStep::Await, change.scope(), member.have.clone());
    if change.needs_idle_gpus {
        await_idle(member, change, &rollout, terms, pool)
    } else {
        replace(member, change, &rollout, terms)
    }
}

fn replace(member: &Member<'_>, change: Change, rollout: &Rollout, terms: &Terms) -> Decision {
    let Change { to, reloads_driver, needs_idle_gpus } = change;
    let step = if reloads_driver { RolloutStep::Release } else { RolloutStep::Replace };
    let labels = if reloads_driver { StageRevisions { driver: member.have.driver.clone(), ..to } } else { to };
    Decision {
        labels,
        rollout: Some(terms.go_on(rollout, step, false)),
        release: reloads_driver || must_release(member, terms.now),
        report_holders: reloads_driver,
        pauses_clients: needs_idle_gpus,
        ..Decision::default()
    }
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

/// Returns a note on the pods that use the node's GPUs, or asks for them. The API server has to confirm only that there are none.
pub fn users(member: &Member<'_>, pool: &mut PoolDecision) -> Option<Note> {
    if let Some(users) = reported_users(member) {
        return Some(users);
    }
    let Some(pods) = member.gpu_pods.map(|pods| &pods.users) else {
        pool.ask(member);
        return Some(Note::new(Reason::RolloutPending, WAITS_FOR_BUDGET));
    };
    pool.ask_again |= !pods.is_empty();
    (!pods.is_empty()).then(|| in_use_by(pods))
}
