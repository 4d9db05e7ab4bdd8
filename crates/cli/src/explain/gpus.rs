//! Whether the GPUs of a node are allocatable and healthy, and the update of the node.

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, GpuNodeStatus,
    gpunode::{DisruptionScope, Rollout, RolloutStep},
    health::{Action, Cause, HealthState},
    policy_status::RolloutStatus,
    report::Gpu,
};

use super::{
    checks::{Check, Evidence, State},
    node_facts::Facts,
};

/// Returns the checks of the GPUs and of the update.
pub fn checks(facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Vec<Check> {
    let governed = gpu_node.spec.policy.is_some();
    let allocatable = governed.then(|| allocatable(facts, status));
    allocatable.into_iter().chain(health(status)).chain(update(facts, gpu_node)).collect()
}

/// Returns how many GPUs are allocatable.
fn allocatable(facts: &Facts, status: &GpuNodeStatus) -> Check {
    const NAME: &str = "Allocatable";
    let counts = &status.gpus;
    let now = counts.allocatable;
    let withheld = facts.node.as_ref().ok().and_then(Option::as_ref).map_or(0, |node| node.facts.withheld.total());
    let mut evidence: Vec<_> =
        counts.resources.iter().map(|(name, count)| Evidence::new(format!("{name}: {count} expected"))).collect();
    if withheld > 0 {
        evidence.push(Evidence::new(format!(
            "{withheld} more are registered, and reported as unhealthy by the device plugin"
        )));
    }
    let check = match counts.expected {
        Some(expected) if now >= expected => Check::new(NAME, State::Done, format!("{now} of {expected}")),
        Some(expected) => {
            let state = if status.is_ready() { State::InProgress } else { State::Pending };
            Check::new(NAME, state, format!("{now} of {expected}"))
        }
        None => Check::new(NAME, State::Unknown, format!("{now}; the expected number is not known")),
    };
    check.with(evidence)
}

/// Returns the health of the GPUs, if the probe has reported them.
fn health(status: &GpuNodeStatus) -> Option<Check> {
    const NAME: &str = "Health";
    let gpus = &status.report.as_ref()?.gpus;
    let state = status.health?;
    let counts = [
        (HealthState::Unhealthy, "unhealthy"),
        (HealthState::Degraded, "degraded"),
        (HealthState::Recovering, "recovering"),
        (HealthState::Unknown, "of unknown health"),
    ];
    let count = |state| gpus.iter().filter(|gpu| gpu.health.state == state).count();
    let counts: Vec<_> = counts
        .iter()
        .map(|(state, name)| (count(*state), name))
        .filter(|(count, _)| *count > 0)
        .map(|(count, name)| format!("{count} {name}"))
        .collect();
    let result = match state {
        HealthState::Healthy => State::Done,
        HealthState::Unhealthy => State::Failed,
        HealthState::Degraded | HealthState::Recovering => State::InProgress,
        HealthState::Unknown => State::Unknown,
    };
    let detail = match (state, counts.is_empty()) {
        (HealthState::Healthy, true) => format!("{} healthy", gpus.len()),
        (HealthState::Unknown, true) => "not known: the probe does not report".to_owned(),
        (state, true) => <&str>::from(state).to_owned(),
        (_, false) => format!("{} of {}", counts.join(", "), gpus.len()),
    };
    Some(Check::new(NAME, result, detail).with(gpus.iter().filter_map(problem).collect()))
}

/// Returns the problem of a GPU: its address, its state with the causes, and the action.
fn problem(gpu: &Gpu) -> Option<Evidence> {
    let health = &gpu.health;
    if matches!(health.state, HealthState::Healthy) || health.causes.is_empty() {
        return None;
    }
    let causes: Vec<_> = health.causes.iter().map(cause).collect();
    let advice = health.action.known().and_then(Action::advice);
    let advice = advice.map(|advice| format!("; {advice}")).unwrap_or_default();
    let state: &str = health.state.into();
    let text = format!("{} {state}: {}{advice}", gpu.pci_address, causes.join(", "));
    Some(Evidence { text, since: health.since.clone() })
}

fn cause(cause: &Cause) -> String {
    let number = cause.xid.map(|xid| format!(" {xid}")).unwrap_or_default();
    let evidence = if cause.evidence.is_empty() { String::new() } else { format!(" ({})", cause.evidence) };
    let recovering = if cause.recovering { ", resolved" } else { "" };
    format!("{}{number}{evidence}{recovering}", cause.kind)
}

/// Returns the update of the node, if one is in progress or pending.
fn update(facts: &Facts, gpu_node: &GpuNode) -> Option<Check> {
    const NAME: &str = "Update";
    let spec = &gpu_node.spec;
    let rollout: Vec<Evidence> = facts.policy_of(gpu_node).and_then(progress).map(Evidence::new).into_iter().collect();
    let canary =
        spec.moved.as_ref().filter(|moved| moved.canary && moved.at.is_none()).map_or("", |_| ", as a canary node");
    let Some(Rollout { step, scope, since, deadline, .. }) = &spec.rollout else {
        let current = spec.current.as_ref()?;
        let detail = "pending: the node has another revision than the policy";
        return (*current != spec.wanted).then(|| Check::new(NAME, State::Pending, detail).with(rollout));
    };
    let what = match step {
        RolloutStep::Await => "step Await: waiting until no pod uses the GPUs",
        RolloutStep::Release => "step Release: the GPUs are being released",
        RolloutStep::Replace => "step Replace: the new revision is being installed",
    };
    let keeps = if *scope == DisruptionScope::Nothing { "; pods keep their GPUs" } else { "" };
    let check = Check::new(NAME, State::InProgress, format!("{what}{canary}{keeps}")).since(Some(since.clone()));
    Some(Check { deadline: deadline.clone(), ..check.with(rollout) })
}

/// Returns the progress of a policy's rollout, if there is one.
fn progress(policy: &ClusterGpuPolicy) -> Option<String> {
    let rollout = &policy.status.as_ref()?.rollout;
    let RolloutStatus { total, done, in_progress, waiting, failed, .. } = rollout;
    (*total > 0).then(|| {
        format!("{done} of {total} nodes of the policy are updated, {in_progress} in progress, {waiting} pending, {failed} failed")
    })
}
