//! The rollout of a pool: which groups each node's labels should name. A node without groups gets the wanted ones immediately.
//! Nodes with other groups are updated one at a time, cordoned ones first, and a node that fails during its update halts its pool.

use std::fmt;

use gpu_operator_crd::{
    NodeName, Phase,
    gpunode::{Rollout, RolloutStep, StageRevisions},
    policy::Stage,
    reason::Reason,
    report::NvmlState,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use crate::{
    assess::{assessment::Assessment, member::Member, mig, verdict::Verdict},
    inventory::{membership::name_of, report::belongs_to, unreadable},
    note::Note,
    revision,
    rollout::{
        decision::{ASK_AT_ONCE, Decision, PoolDecision, halts, missed_a_gpu_before},
        mig::divide_anew,
        runtime_restart::RuntimeTurn,
    },
    world::{PodFacts, Role, World},
};

/// The node of a pool for which the others have to wait.
enum Turn {
    /// It is being updated.
    Moving(NodeName),
    /// Its update may begin at any time.
    Unanswered(NodeName),
    /// Its GpuNode cannot be parsed, so it may be in the middle of an update.
    Unreadable(NodeName),
    /// It has left the pool in the middle of an update, which goes on if it comes back.
    Left(NodeName),
}

impl fmt::Display for Turn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Moving(node) => write!(f, "node {node} of this pool is being updated"),
            Self::Unanswered(node) => {
                write!(f, "the API server has not answered whether the update of node {node} of this pool has begun")
            }
            Self::Unreadable(node) => write!(
                f,
                "GpuNode {node} of this pool cannot be parsed, so its node may be in the middle of an update; upgrade the operator to the version that wrote it"
            ),
            Self::Left(node) => write!(f, "node {node} has left this pool in the middle of an update"),
        }
    }
}

/// Returns the decisions for the members of one pool, in the order of their names.
#[must_use]
pub fn decide(members: &[Assessment<'_>], world: &World, now: Timestamp) -> PoolDecision {
    let mut pool = PoolDecision::default();
    let mut runtime = RuntimeTurn::of(members, world, now);
    let mut waiting = Vec::new();
    for member in members.iter().map(|assessed| &assessed.member).filter(|member| waits_for_holders(member, now)) {
        // The probe releases the driver only if the driver's container can start then.
        pool.ask_again |= member.gpu_pods.is_some_and(|pods| !pods.holders.is_empty());
        if member.gpu_pods.is_none() && pool.questions.len() < ASK_AT_ONCE {
            pool.questions.insert(member.node.name.clone());
        }
    }
    for Assessment { member, verdict, .. } in members {
        let want = member.want();
        let decision = match (want, member.rollout()) {
            // The wanted groups are unknown: the node keeps its groups, or gets its previous ones back.
            (None, rollout) => stay(member, rollout),
            (Some(want), None) if has_nothing_else(&member.have, &want) => {
                in_turn(settle(member, want, now), member, &mut runtime)
            }
            (Some(want), rollout) if !are_there(&want, world) => {
                let message = "update pending: the DaemonSets of the new revision do not exist yet";
                Decision { note: Some(Note::new(Reason::RolloutPending, message)), ..stay(member, rollout) }
            }
            (Some(want), Some(rollout)) => {
                let decision = go_on(member, verdict, want, rollout, now, &mut pool);
                in_turn(decision, member, &mut runtime)
            }
            (Some(_), None) => {
                waiting.push(member);
                continue;
            }
        };
        if decision.rollout.is_some() && pool.halted.is_none() {
            pool.halted = halts(member, verdict);
        }
        pool.nodes.insert(member.node.name.clone(), decision);
    }
    let moving = pool.nodes.iter().find(|(_, decision)| decision.rollout.is_some());
    let mut unanswered = members.iter().map(|assessed| &assessed.member.node.name);
    let unanswered = unanswered.find(|name| world.unanswered_updates.contains(*name));
    let turn = moving.map(|(name, _)| Turn::Moving(name.clone()));
    let mut turn = turn.or_else(|| Some(Turn::Unanswered(unanswered?.clone()))).or_else(|| {
        let member = &members.first()?.member;
        let node = unreadable::of_pool(world, member.policy, &member.pool).next()?;
        Some(Turn::Unreadable(node.name.clone()))
    });
    if turn.is_none() && !waiting.is_empty() {
        turn = left_in_an_update(members, world).map(Turn::Left);
    }
    // A cordoned node gets no new GPU pods, so it can be updated in a fleet that is otherwise always busy.
    waiting.sort_by_key(|member| !member.node.cordoned);
    for member in waiting {
        let decision = take_turn(member, now, &mut turn, &mut pool);
        let decision = in_turn(decision, member, &mut runtime);
        pool.nodes.insert(member.node.name.clone(), decision);
    }
    pool.ask_again |= runtime.waits_for_entry;
    pool.recreate.extend(members.iter().filter_map(|assessed| runtime.renews(&assessed.member, world, now)));
    pool.halted = pool.halted.or(runtime.halted());
    if turn.is_none() {
        divide_anew(members, now, &mut pool);
    }
    pool
}

/// Returns a node that has left the pool of these members in the middle of an update.
fn left_in_an_update(members: &[Assessment<'_>], world: &World) -> Option<NodeName> {
    let Member { policy, pool, .. } = &members.first()?.member;
    let policy = name_of(policy);
    let mut recorded = world.gpu_nodes.iter().filter(|(name, gpu_node)| {
        let spec = &gpu_node.spec;
        let is_of_pool = spec.policy.as_ref() == Some(&policy) && spec.pool.as_ref() == Some(pool);
        let is_member = || members.iter().any(|assessed| assessed.member.node.name == **name);
        let exists = || world.nodes.get(*name).is_some_and(|node| belongs_to(gpu_node, node));
        spec.rollout.is_some() && is_of_pool && exists() && !is_member()
    });
    recorded.next().map(|(name, _)| name.clone())
}

/// Returns whether a node has no groups other than the wanted ones. Some may be missing: the node never had them, or a user
/// removed a label. Restoring the label disrupts nothing, because a group's name includes the driver that it is for.
#[must_use]
pub fn has_nothing_else(have: &StageRevisions, want: &StageRevisions) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let had = have.get(stage);
        had.is_none() || had == want.get(stage)
    })
}

/// Returns whether the DaemonSets of these groups exist. A running revision is not given up for one that the API server
/// rejects.
fn are_there(want: &StageRevisions, world: &World) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let name = want.get(stage).map(|group| revision::daemon_set_name(stage, group));
        name.is_none_or(|name| world.daemon_sets.contains_key(&name))
    })
}

/// Returns the decision to keep a node's labels, or to restore those that it gave up for an update that cannot continue. While the
/// wanted groups are unknown, as after a reboot, an update is neither continued nor given up.
fn stay(member: &Member<'_>, rollout: Option<&Rollout>) -> Decision {
    let unknown = member.desired.is_unknown();
    let release = unknown && member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    match rollout.filter(|_| !unknown) {
        Some(rollout) if rollout.step == RolloutStep::Release => {
            Decision { labels: rollout.from.clone(), rollout: None, release: false, note: None }
        }
        _ => Decision { labels: member.have.clone(), rollout: rollout.cloned(), release, note: None },
    }
}

/// Returns the part of a decision that applies while the node's container runtime may not be restarted.
fn in_turn(decision: Decision, member: &Member<'_>, runtime: &mut RuntimeTurn) -> Decision {
    let (labels, note) = runtime.of_these(member, decision.labels);
    Decision { labels, note: decision.note.or(note), ..decision }
}

/// Returns the decision for a node that has, or immediately gets, the wanted groups.
fn settle(member: &Member<'_>, want: StageRevisions, now: Timestamp) -> Decision {
    Decision { release: must_release(member, now), labels: want, rollout: None, note: None }
}

/// Returns the decision for a node that is being updated.
fn go_on(
    member: &Member<'_>,
    verdict: &Verdict,
    want: StageRevisions,
    rollout: &Rollout,
    now: Timestamp,
    pool: &mut PoolDecision,
) -> Decision {
    let install = |want: StageRevisions| Decision {
        release: must_release(member, now) || moves_driver(&member.have, &want),
        labels: want,
        rollout: Some(Rollout { step: RolloutStep::Install, ..rollout.clone() }),
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
        Some(pods) if pods.is_empty() => install(want),
        // A GPU pod was started in the meantime: the node gets its groups back until the pod has terminated.
        Some(pods) => {
            pool.ask_again = true;
            Decision { labels: from, rollout: None, release: false, note: Some(in_use(pods)) }
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
    let releasing = "releasing the GPUs before the driver is replaced:";
    let plugins = [Stage::DevicePlugin, Stage::Mps];
    // A pod that was just created may be missing among those that the mirror holds.
    let listed = || member.gpu_pods.into_iter().flat_map(|pods| &pods.plugins);
    let of = |stage| member.pods_of(stage).chain(listed().filter(move |pod| pod.role == Role::Operand(stage)));
    let old = |stage| of(stage).find(|pod| pod.group.as_ref() != want.get(stage));
    if let Some(pod) = plugins.into_iter().find_map(old) {
        return Some(format!("{releasing} waiting for pod {} to terminate", pod.name));
    }
    let labelled = revision::node_groups(member.node);
    let is_selected = |stage| labelled.get(stage).is_some_and(|group| want.get(stage) != Some(group));
    if plugins.into_iter().any(is_selected) {
        return Some(format!("{releasing} removing the device plugin"));
    }
    let answering = member.report().is_some_and(|report| report.nvml.state == NvmlState::Answering);
    let probe_runs = member.probe_pod().is_none_or(PodFacts::running);
    let message = if probe_runs {
        "waiting for the probe to release the driver"
    } else {
        "the probe has to release the driver, but its pod is not running; check DaemonSet nodestack-nvml-probe"
    };
    answering.then(|| message.to_owned())
}

/// Returns the decision for a node whose revision is not the wanted one and that is not being updated.
fn take_turn(member: &Member<'_>, now: Timestamp, turn: &mut Option<Turn>, pool: &mut PoolDecision) -> Decision {
    let Some(want) = member.want() else {
        return stay(member, None);
    };
    let driver_moves = moves_driver(&member.have, &want);
    // A failed node without allocatable units has no workload to disturb, so it is updated immediately.
    let nothing_to_lose = member.was_failing() && member.allocatable() == 0 && member.external.by_claims().is_none();
    let pending = |message: String| Decision {
        note: Some(Note::new(Reason::RolloutPending, message)),
        ..settle(member, member.have.clone(), now)
    };
    let is_own = |turn: &&Turn| matches!(turn, Turn::Unanswered(node) if *node == member.node.name);
    if !nothing_to_lose && let Some(other) = turn.as_ref().filter(|turn| !is_own(turn)) {
        return pending(format!("update pending: {other}"));
    }
    if !nothing_to_lose && (!member.node.ready || member.node.deleting) {
        // The node's own reason explains it.
        return settle(member, member.have.clone(), now);
    }
    if driver_moves || mig::differs(member).is_some() {
        match member.gpu_pods.map(|pods| &pods.users) {
            Some(pods) if !pods.is_empty() => {
                pool.ask_again = true;
                return Decision { note: Some(in_use(pods)), ..settle(member, member.have.clone(), now) };
            }
            Some(_) => {}
            None => {
                if pool.questions.len() < ASK_AT_ONCE {
                    pool.questions.insert(member.node.name.clone());
                }
                return pending("update pending: nodes of a pool are updated one at a time".to_owned());
            }
        }
    }
    if nothing_to_lose {
        return Decision { release: driver_moves || must_release(member, now), ..settle(member, want, now) };
    }
    *turn = Some(Turn::Moving(member.node.name.clone()));
    let step = if driver_moves { RolloutStep::Release } else { RolloutStep::Install };
    let labels = if driver_moves { StageRevisions { driver: member.have.driver.clone(), ..want } } else { want };
    Decision {
        labels,
        rollout: Some(Rollout { step, from: member.have.clone(), since: Time(now) }),
        release: driver_moves || must_release(member, now),
        note: None,
    }
}

fn in_use(pods: &[String]) -> Note {
    let message = format!("update pending until no pod uses a GPU of this node; pods that use one: {}", pods.len());
    Note { reason: Reason::GpuPodsInUse, message, waits_on: pods.iter().take(10).cloned().collect() }
}

/// Returns whether an update replaces the driver, and not only the stages on top of it.
fn moves_driver(have: &StageRevisions, want: &StageRevisions) -> bool {
    have.driver != want.driver
}

/// Returns whether the probe has to release the driver: for a driver of this operator, or for a change of the MIG layout.
fn must_release(member: &Member<'_>, now: Timestamp) -> bool {
    mig::is_blocked(member) || stands_in_the_way(member, now)
}

/// Returns whether the driver's container may be waiting until no program uses the driver: in its guard, before the first
/// start or a restart, or because it has failed. While no module is loaded, no program can use the driver.
fn waits_for_holders(member: &Member<'_>, now: Timestamp) -> bool {
    if member.report().is_none_or(|report| report.driver.loaded.is_none()) {
        return false;
    }
    let crashed = |pod: &PodFacts| pod.containers.iter().any(|container| container.last_failure.is_some());
    let failed = member.pod(Stage::Driver).is_some_and(|pod| crashed(pod) && !pod.running());
    failed || member.driver_waits() || member.driver_waits_until().is_some_and(|until| now >= until)
}

/// Returns whether the probe blocks a driver of this operator: a module is loaded, and either another version has to replace
/// it, or the driver's container has failed or is waiting in its guard for the programs that use the module. A container that
/// is merely not running yet proves nothing: it loads the module before it is reported as running, and the watch of pods may
/// be behind the probe's report. Once requested, the release lasts until the driver is running.
fn stands_in_the_way(member: &Member<'_>, now: Timestamp) -> bool {
    let Some(loaded) = member.report().and_then(|report| report.driver.loaded.as_deref()) else {
        return false;
    };
    let want = member.want().unwrap_or_default();
    let leaving = |pod: &PodFacts| [&want.driver, &member.have.driver].into_iter().all(|group| pod.group != *group);
    let Some(choice) = member.driver().filter(|choice| choice.is_managed()) else {
        return member.pods_of(Stage::Driver).any(leaving);
    };
    let asked = member.gpu_node.is_some_and(|gpu_node| gpu_node.spec.release_driver);
    // While pods use the GPUs, a release does not help, and the health of the GPUs would not be monitored.
    let wins = member.gpu_pods.map_or(asked, |pods| pods.holders.is_empty());
    let up = member.pod(Stage::Driver).is_some_and(PodFacts::running) && !member.driver_waits();
    !up && wins && (asked || waits_for_holders(member, now))
        || (!choice.fits(loaded) && !member.driver_waits_for_its_turn())
}
