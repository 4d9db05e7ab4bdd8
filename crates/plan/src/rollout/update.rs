//! The update of one node, step by step: check which programs hold its GPUs, release them, install the new revision.

use gpu_operator_crd::{
    Phase,
    gpunode::{Rollout, RolloutStep, StageRevisions},
    keys,
    policy::Stage,
    reason::Reason,
    report::NvmlState,
};
use k8s_openapi::jiff::Timestamp;

use super::{
    decision::{Decision, PoolDecision, missed_a_gpu_before},
    release::{must_release, waits_for_programs},
};
use crate::{
    assess::{
        holders::{self, Blocker, Holders},
        member::Member,
        mig,
        verdict::Verdict,
    },
    note::Note,
    revision,
    time::older,
    world::{PodFacts, Role},
};

/// The beginning of a message about what still uses the driver that has to be replaced.
const RELEASING: &str = "releasing the GPUs before the driver is replaced:";

/// Returns whether a node has no groups other than the wanted ones. Some may be missing: the node never had them, or a user
/// removed a label. Restoring the label disrupts nothing, because a group's name includes the driver that it is for.
#[must_use]
pub fn has_nothing_else(have: &StageRevisions, want: &StageRevisions) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let had = have.get(stage);
        had.is_none() || had == want.get(stage)
    })
}

/// Returns the decision to keep a node's labels, or to restore those that it gave up for an update that cannot continue. While the
/// wanted groups are unknown, as after a reboot, an update is neither continued nor given up.
#[must_use]
pub fn keep_or_restore(member: &Member<'_>, rollout: Option<&Rollout>) -> Decision {
    let unknown = member.desired.is_unknown();
    let release = unknown && member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    match rollout.filter(|_| !unknown) {
        Some(rollout) if rollout.step != RolloutStep::Install => {
            Decision { labels: rollout.from.clone(), ..Decision::default() }
        }
        _ => Decision {
            labels: member.have.clone(),
            rollout: rollout.cloned(),
            release,
            report_holders: unknown && holders::is_requested(member),
            pauses_clients: unknown && member.node.labels.contains_key(keys::CLIENTS),
            note: None,
        },
    }
}

/// Returns the decision for a node that has, or immediately gets, the wanted groups.
#[must_use]
pub fn settle(member: &Member<'_>, want: StageRevisions, now: Timestamp) -> Decision {
    // While the driver's container waits for programs that use the driver, the node's reason names them.
    let report_holders = waits_for_programs(member, now);
    Decision { release: must_release(member, now), labels: want, report_holders, ..Decision::default() }
}

/// Returns the decision for a node that is being updated.
#[must_use]
pub fn continue_update(
    member: &Member<'_>,
    verdict: &Verdict,
    want: StageRevisions,
    rollout: &Rollout,
    now: Timestamp,
    pool: &mut PoolDecision,
) -> Decision {
    if rollout.step == RolloutStep::Check && member.have != want {
        return check(member, want, rollout, now, pool);
    }
    let install = |want: StageRevisions| Decision {
        release: must_release(member, now) || moves_driver(&member.have, &want),
        pauses_clients: needs_idle_gpus(member, &rollout.from, &want),
        labels: want,
        rollout: Some(Rollout { step: RolloutStep::Install, ..rollout.clone() }),
        report_holders: waits_for_programs(member, now),
        note: None,
    };
    if !moves_driver(&member.have, &want) {
        return if is_done(member, verdict, &want) { settle(member, want, now) } else { install(want) };
    }
    // If the policy changed during the update and wants yet another driver, the stages on top of the driver are removed first.
    let from = if rollout.step == RolloutStep::Release { rollout.from.clone() } else { member.have.clone() };
    let release = Rollout { step: RolloutStep::Release, from: from.clone(), ..rollout.clone() };
    let releasing = |message: String| Decision {
        labels: StageRevisions { driver: member.have.driver.clone(), ..want.clone() },
        rollout: Some(release.clone()),
        release: true,
        report_holders: true,
        pauses_clients: true,
        note: Some(Note::new(Reason::ReleasingGpus, message)),
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
                let waits = !older(rollout.since.0, holders::GRACE, now);
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
        // A GPU pod was started in the meantime: the node gets its groups back until the pod has terminated.
        Some(pods) => {
            pool.ask_again = true;
            Decision { labels: from, note: Some(in_use(pods)), ..Decision::default() }
        }
    }
}

/// Returns whether a node's update is complete. A missing or unhealthy GPU is not caused by the new revision, and does not
/// halt the pool.
fn is_done(member: &Member<'_>, verdict: &Verdict, want: &StageRevisions) -> bool {
    let arrived = verdict.phase == Phase::Ready || verdict.reason.counts_apart() || missed_a_gpu_before(verdict);
    member.have == *want && member.stack_proven() && arrived
}

/// Returns which of this operator's pods still uses the driver that has to be replaced, or may be created to do so, as a message.
fn driver_holder(member: &Member<'_>, want: &StageRevisions) -> Option<String> {
    let plugins = [Stage::DevicePlugin, Stage::Mps];
    // A pod that was just created may be missing among those that the mirror holds.
    let listed = || member.gpu_pods.into_iter().flat_map(|pods| &pods.plugins);
    let of = |stage| member.pods_of(stage).chain(listed().filter(move |pod| pod.role == Role::Operand(stage)));
    let old = |stage| of(stage).find(|pod| pod.group.as_ref() != want.get(stage));
    if let Some(pod) = plugins.into_iter().find_map(old) {
        return Some(format!("{RELEASING} waiting for pod {} to terminate", pod.name));
    }
    let labelled = revision::node_groups(member.node);
    let is_selected = |stage| labelled.get(stage).is_some_and(|group| want.get(stage) != Some(group));
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

/// Returns the decision for a node that is idle according to the API server, and whose update begins unless its probe lists a program
/// that holds its GPUs.
#[must_use]
pub fn check(
    member: &Member<'_>,
    want: StageRevisions,
    rollout: &Rollout,
    now: Timestamp,
    pool: &mut PoolDecision,
) -> Decision {
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
    match member.gpu_pods.map(|pods| &pods.users) {
        None => {
            pool.questions.insert(member.node.name.clone());
            return decision(Some(rollout), listing());
        }
        Some(pods) if !pods.is_empty() => {
            pool.ask_again = true;
            return decision(None, in_use(pods));
        }
        Some(_) => {}
    }
    match Holders::of(member) {
        Holders::Listed(blockers) if blockers.iter().any(|blocker| !blocker.gives_way) => {
            pool.ask_again = true;
            decision(None, holders::note(blockers.iter().filter(|blocker| !blocker.gives_way)))
        }
        Holders::Unknown if holders::can_be_listed(member) && !older(rollout.since.0, holders::GRACE, now) => {
            pool.ask_again = true;
            decision(Some(rollout), listing())
        }
        Holders::Listed(_) | Holders::Unknown => begin(member, want, rollout, now),
    }
}

/// Returns the decision to begin the update of a node.
#[must_use]
pub fn begin(member: &Member<'_>, want: StageRevisions, rollout: &Rollout, now: Timestamp) -> Decision {
    let driver_moves = moves_driver(&member.have, &want);
    let pauses_clients = needs_idle_gpus(member, &member.have, &want);
    let step = if driver_moves { RolloutStep::Release } else { RolloutStep::Install };
    let labels = if driver_moves { StageRevisions { driver: member.have.driver.clone(), ..want } } else { want };
    Decision {
        labels,
        rollout: Some(Rollout { step, ..rollout.clone() }),
        release: driver_moves || must_release(member, now),
        report_holders: driver_moves,
        pauses_clients,
        note: None,
    }
}

/// Returns the note on a node whose update is pending because these pods use its GPUs.
#[must_use]
pub fn in_use(pods: &[String]) -> Note {
    let message = format!("update pending until no pod uses a GPU of this node; pods that use one: {}", pods.len());
    Note { reason: Reason::GpuPodsInUse, message, waits_on: pods.iter().take(10).cloned().collect() }
}

/// Returns whether no program may use the GPUs during an update: its driver is replaced, or its GPUs are divided in another way.
#[must_use]
pub fn needs_idle_gpus(member: &Member<'_>, from: &StageRevisions, want: &StageRevisions) -> bool {
    moves_driver(from, want) || mig::differs(member).is_some()
}

/// Returns whether an update replaces the driver, and not only the stages on top of it.
#[must_use]
pub fn moves_driver(have: &StageRevisions, want: &StageRevisions) -> bool {
    have.driver != want.driver
}
