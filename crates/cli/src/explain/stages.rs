//! The stages of a node's GPU stack, whether its GPUs are allocatable and healthy, and the update of the node.

use gpu_operator_crd::{
    ClusterGpuPolicy, GpuNode, GpuNodeStatus, NodeConditionType, Phase, Reason,
    gpunode::{DisruptionScope, Rollout, RolloutStep, Validated, ValidationResult},
    health::{Action, Cause, HealthState},
    policy::{Stage, ValidationMode},
    policy_status::RolloutStatus,
    report::{Gpu, NvmlState, Report},
};
use gpu_operator_plan::{inventory::records, world::Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::node_facts::{Facts, of_pod};
use crate::{output::Tone, report::Line};

/// Returns the checks of the stages and of the validation. There are none if no policy governs the node.
pub fn checks(facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Vec<Line> {
    if status.conditions.is_empty() {
        return Vec::new();
    }
    let stages = [
        ("Driver", NodeConditionType::DriverReady, &[Stage::Driver][..]),
        ("Toolkit", NodeConditionType::ToolkitReady, &[Stage::Toolkit]),
        ("Device plugin", NodeConditionType::DevicePluginReady, &[Stage::Mps, Stage::DevicePlugin]),
    ];
    let mut checks: Vec<Line> = stages
        .into_iter()
        .filter_map(|(name, kind, stages)| {
            let condition = status.conditions.iter().find(|condition| condition.type_ == kind.as_str())?;
            let evidence = stages.iter().flat_map(|stage| evidence(*stage, facts, gpu_node, status));
            Some(of_condition(name, condition, status).with(evidence.collect()))
        })
        .collect();
    checks.push(validation(facts, gpu_node, status));
    checks
}

fn of_condition(name: &'static str, condition: &Condition, status: &GpuNodeStatus) -> Line {
    let reason: Option<Reason> = condition.reason.parse().ok();
    let state = match (condition.status.as_str(), reason) {
        ("True", _) => Tone::Good,
        ("False", Some(Reason::StagePending)) => Tone::Quiet,
        ("False", Some(reason)) if reason.is_failure() => Tone::Bad,
        _ => Tone::Warning,
    };
    let is_repeated = condition.message == status.message;
    let detail = match state {
        Tone::Good => "works".to_owned(),
        // The message of the node is shown once.
        _ if is_repeated => condition.reason.clone(),
        Tone::Quiet => condition.message.clone(),
        _ => format!("{}: {}", condition.reason, condition.message),
    };
    Line::check(name, state, detail).since(Some(condition.last_transition_time.clone()))
}

/// Returns the evidence of a stage: what the probe reports, who installs it, and its pods.
fn evidence(stage: Stage, facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Vec<Line> {
    let mut lines = Vec::new();
    if stage == Stage::Driver {
        match report_of(facts, gpu_node) {
            Some(report) => lines.extend(of_driver(report)),
            None => lines.push("the probe has not reported since the node was booted".to_owned()),
        }
    }
    if let (Stage::Toolkit, Some(runtime)) = (stage, &status.host_runtime) {
        lines.push(format!("the host's own runtime {} in {}", runtime.handler, runtime.file));
    }
    if let Some(foreign) = status.foreign.get(stage.as_str()) {
        lines.push(format!("provided by {foreign}, which this operator does not manage"));
    }
    let own = pods(facts, Role::Operand(stage));
    let installed = gpu_node.spec.current.as_ref().map(|current| current.get(stage).is_some());
    let is_provided =
        status.foreign.contains_key(stage.as_str()) || stage == Stage::Toolkit && status.host_runtime.is_some();
    match installed {
        Some(true) if own.is_empty() && facts.pods.is_ok() => {
            lines.push(format!("the {} has no pod on the node", stage.title()));
        }
        Some(false) if !is_provided && stage != Stage::Mps => lines.push("not installed by this operator".to_owned()),
        _ => {}
    }
    lines.into_iter().map(Line::evidence).chain(own).collect()
}

fn pods(facts: &Facts, role: Role) -> Vec<Line> {
    let all = facts.pods.iter().flat_map(|pods| &pods.own);
    all.filter(|pod| pod.role == role).map(of_pod).collect()
}

/// Returns the probe's report, unless it is known to be of an earlier boot.
fn report_of<'f>(facts: &Facts, gpu_node: &'f GpuNode) -> Option<&'f Report> {
    match &facts.node {
        Ok(Some(node)) => records::current_report(&node.facts, Some(gpu_node)),
        _ => records::last_report(Some(gpu_node)),
    }
}

/// Returns what the probe reports about the driver.
fn of_driver(report: &Report) -> Vec<String> {
    let driver = &report.driver;
    let mut lines = Vec::new();
    let cuda = driver.cuda_version.as_ref().map(|cuda| format!(", CUDA {cuda}")).unwrap_or_default();
    match &driver.loaded {
        Some(version) => lines.push(format!("version {version} is loaded{cuda}")),
        None => lines.push("no driver is loaded".to_owned()),
    }
    let others = driver.installed.iter().filter(|found| Some(&found.version) != driver.loaded.as_ref());
    lines.extend(others.map(|found| format!("version {} is installed in {}", found.version, found.root)));
    lines.extend(driver.waits.as_ref().map(|waits| format!("its container waits: {waits}")));
    lines.extend(driver.load_errors.iter().map(|logged| format!("kernel log: {logged}")));
    for holder in driver.holders.iter().flatten() {
        let who = match (&holder.pod_uid, holder.pid) {
            (Some(uid), _) => format!("pod with uid {uid}"),
            (None, Some(pid)) => format!("process {pid} of the host"),
            (None, None) => "a process of the host".to_owned(),
        };
        lines.push(format!("in use by {} ({who})", holder.process));
    }
    match report.nvml.state {
        NvmlState::Failing => {
            lines.push(format!("NVML fails: {}", report.nvml.message.as_deref().unwrap_or("no message")));
        }
        NvmlState::Released => lines.push("the probe has released it".to_owned()),
        NvmlState::Absent | NvmlState::Answering => {}
    }
    lines
}

fn validation(facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Line {
    const NAME: &str = "Validation";
    let policy = facts.policy_of(gpu_node);
    let is_requested =
        policy.map(|policy| policy.spec.readiness.validation.mode.unwrap_or_default() != ValidationMode::Never);
    let check = match &status.validation {
        _ if status.phase == Phase::Validation => {
            let failed = status.reason().is_some_and(Reason::is_failure);
            Line::check(NAME, if failed { Tone::Bad } else { Tone::Warning }, "the test is pending or running")
        }
        None if is_requested == Some(true) => Line::check(NAME, Tone::Quiet, "after the device plugin"),
        None if is_requested == Some(false) || status.is_ready() => {
            Line::check(NAME, Tone::Quiet, "not requested by the policy")
        }
        None => Line::check(NAME, Tone::Warning, "none; whether the policy requests one is not known"),
        Some(Validated { result, since, message, failures, .. }) => {
            let message = if message.is_empty() { String::new() } else { format!(": {message}") };
            let (state, detail) = match result {
                ValidationResult::Passed => (Tone::Good, "passed".to_owned()),
                ValidationResult::Failed if *failures <= 1 => (Tone::Bad, format!("failed{message}")),
                ValidationResult::Failed => (Tone::Bad, format!("failed {failures} times in a row{message}")),
                ValidationResult::Skipped => (Tone::Quiet, format!("skipped{message}")),
            };
            Line::check(NAME, state, detail).since(Some(since.clone()))
        }
    };
    check.with(pods(facts, Role::Validation))
}

/// Returns the checks of the GPUs and of the update.
pub fn gpus(facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Vec<Line> {
    let governed = gpu_node.spec.policy.is_some();
    let allocatable = governed.then(|| allocatable(facts, status));
    allocatable.into_iter().chain(health(status)).chain(update(facts, gpu_node)).collect()
}

fn allocatable(facts: &Facts, status: &GpuNodeStatus) -> Line {
    const NAME: &str = "Allocatable";
    let counts = &status.gpus;
    let now = counts.allocatable;
    let withheld = facts.node.as_ref().ok().and_then(Option::as_ref).map_or(0, |node| node.facts.withheld.total());
    let mut evidence: Vec<_> =
        counts.resources.iter().map(|(name, count)| Line::evidence(format!("{name}: {count} expected"))).collect();
    if counts.by_claims {
        evidence.push(Line::evidence(
            "by resource claims: the DRA driver publishes them in the node's ResourceSlices".to_owned(),
        ));
    }
    if withheld > 0 {
        evidence.push(Line::evidence(format!(
            "{withheld} more are registered, and reported as unhealthy by the device plugin"
        )));
    }
    let check = match counts.expected {
        Some(expected) if now >= expected => Line::check(NAME, Tone::Good, format!("{now} of {expected}")),
        Some(expected) => {
            let state = if status.is_ready() { Tone::Warning } else { Tone::Quiet };
            Line::check(NAME, state, format!("{now} of {expected}"))
        }
        None => Line::check(NAME, Tone::Warning, format!("{now}; the expected number is not known")),
    };
    check.with(evidence)
}

fn health(status: &GpuNodeStatus) -> Option<Line> {
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
        HealthState::Healthy => Tone::Good,
        HealthState::Unhealthy => Tone::Bad,
        HealthState::Degraded | HealthState::Recovering | HealthState::Unknown => Tone::Warning,
    };
    let detail = match (state, counts.is_empty()) {
        (HealthState::Healthy, true) => format!("{} healthy", gpus.len()),
        (HealthState::Unknown, true) => "not known: the probe does not report".to_owned(),
        (state, true) => <&str>::from(state).to_owned(),
        (_, false) => format!("{} of {}", counts.join(", "), gpus.len()),
    };
    Some(Line::check(NAME, result, detail).with(gpus.iter().filter_map(problem).collect()))
}

/// Returns the problem of a GPU: its address, its state with the causes, and the action.
fn problem(gpu: &Gpu) -> Option<Line> {
    let health = &gpu.health;
    if matches!(health.state, HealthState::Healthy) || health.causes.is_empty() {
        return None;
    }
    let causes: Vec<_> = health.causes.iter().map(cause).collect();
    let advice = health.action.known().and_then(Action::advice);
    let advice = advice.map(|advice| format!("; {advice}")).unwrap_or_default();
    let state: &str = health.state.into();
    let text = format!("{} {state}: {}{advice}", gpu.pci_address, causes.join(", "));
    Some(Line::evidence(text).since(health.since.clone()))
}

fn cause(cause: &Cause) -> String {
    let number = cause.xid.map(|xid| format!(" {xid}")).unwrap_or_default();
    let evidence = if cause.evidence.is_empty() { String::new() } else { format!(" ({})", cause.evidence) };
    let recovering = if cause.recovering { ", resolved" } else { "" };
    format!("{}{number}{evidence}{recovering}", cause.kind)
}

/// Returns the update of the node, if one is in progress or pending.
fn update(facts: &Facts, gpu_node: &GpuNode) -> Option<Line> {
    const NAME: &str = "Update";
    let spec = &gpu_node.spec;
    let rollout: Vec<Line> = facts.policy_of(gpu_node).and_then(progress).map(Line::evidence).into_iter().collect();
    let canary = spec
        .last_update
        .as_ref()
        .filter(|last_update| last_update.canary && last_update.at.is_none())
        .map_or("", |_| ", as a canary node");
    let Some(Rollout { step, scope, since, deadline, .. }) = &spec.rollout else {
        let current = spec.current.as_ref()?;
        let detail = "pending: the node has another revision than the policy";
        return (*current != spec.wanted).then(|| Line::check(NAME, Tone::Quiet, detail).with(rollout));
    };
    let what = match step {
        RolloutStep::Await => "step Await: waiting until no pod uses the GPUs",
        RolloutStep::Release => "step Release: the GPUs are being released",
        RolloutStep::Replace => "step Replace: the new revision is being installed",
    };
    let keeps = if *scope == DisruptionScope::Nothing { "; pods keep their GPUs" } else { "" };
    let check = Line::check(NAME, Tone::Warning, format!("{what}{canary}{keeps}")).since(Some(since.clone()));
    Some(Line { deadline: deadline.as_ref().map(|deadline| deadline.0), ..check.with(rollout) })
}

fn progress(policy: &ClusterGpuPolicy) -> Option<String> {
    let rollout = &policy.status.as_ref()?.rollout;
    let RolloutStatus { total, done, in_progress, waiting, failed, .. } = rollout;
    (*total > 0).then(|| {
        format!("{done} of {total} nodes of the policy are updated, {in_progress} in progress, {waiting} pending, {failed} failed")
    })
}
