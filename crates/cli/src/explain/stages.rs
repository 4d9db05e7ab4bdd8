//! How far the stages of a node's GPU stack are.

use gpu_operator_crd::{
    GpuNode, GpuNodeStatus, NodeConditionType, Phase, Reason,
    policy::{Stage, ValidationMode},
    report::{NvmlState, Report},
    validated::{Validated, ValidationResult},
};
use gpu_operator_plan::{inventory::records, world::Role};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{
    checks::{Check, Evidence, State},
    node_facts::Facts,
};

/// Returns the checks of the stages and of the validation. There are none if no policy governs the node.
pub fn checks(facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Vec<Check> {
    if status.conditions.is_empty() {
        return Vec::new();
    }
    let stages = [
        ("Driver", NodeConditionType::DriverReady, &[Stage::Driver][..]),
        ("Toolkit", NodeConditionType::ToolkitReady, &[Stage::Toolkit]),
        ("Device plugin", NodeConditionType::DevicePluginReady, &[Stage::Mps, Stage::DevicePlugin]),
    ];
    let mut checks: Vec<Check> = stages
        .into_iter()
        .filter_map(|(name, kind, stages)| {
            let condition = status.conditions.iter().find(|condition| condition.type_ == kind.as_str())?;
            let mut check = of_condition(name, condition, status);
            check.evidence = stages.iter().flat_map(|stage| evidence(*stage, facts, gpu_node, status)).collect();
            Some(check)
        })
        .collect();
    checks.push(validation(facts, gpu_node, status));
    checks
}

fn of_condition(name: &'static str, condition: &Condition, status: &GpuNodeStatus) -> Check {
    let reason: Option<Reason> = condition.reason.parse().ok();
    let state = match (condition.status.as_str(), reason) {
        ("True", _) => State::Done,
        ("False", Some(Reason::StagePending)) => State::Pending,
        ("False", Some(reason)) if reason.is_failure() => State::Failed,
        ("False", _) => State::InProgress,
        _ => State::Unknown,
    };
    let is_repeated = condition.message == status.message;
    let detail = match state {
        State::Done => "works".to_owned(),
        // The message of the node is shown once.
        _ if is_repeated => condition.reason.clone(),
        State::Pending => condition.message.clone(),
        _ => format!("{}: {}", condition.reason, condition.message),
    };
    let shown = Some(condition.reason.clone()).filter(|_| state != State::Done);
    Check { reason: shown, since: Some(condition.last_transition_time.clone()), ..Check::new(name, state, detail) }
}

/// Returns the evidence of a stage: what the probe reports, who installs it, and its pods.
fn evidence(stage: Stage, facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Vec<Evidence> {
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
    lines.into_iter().map(Evidence::new).chain(own).collect()
}

fn pods(facts: &Facts, role: Role) -> Vec<Evidence> {
    let all = facts.pods.iter().flat_map(|pods| &pods.own);
    all.filter(|pod| pod.role == role).map(Evidence::of_pod).collect()
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

fn validation(facts: &Facts, gpu_node: &GpuNode, status: &GpuNodeStatus) -> Check {
    const NAME: &str = "Validation";
    let policy = facts.policy_of(gpu_node);
    let is_requested =
        policy.map(|policy| policy.spec.readiness.validation.mode.unwrap_or_default() != ValidationMode::Never);
    let check = match &status.validation {
        _ if status.phase == Phase::Validation => {
            let failed = status.reason().is_some_and(Reason::is_failure);
            Check::new(NAME, if failed { State::Failed } else { State::InProgress }, "the test is pending or running")
        }
        None if is_requested == Some(true) => Check::new(NAME, State::Pending, "after the device plugin"),
        None if is_requested == Some(false) || status.is_ready() => {
            Check::new(NAME, State::NotNeeded, "not requested by the policy")
        }
        None => Check::new(NAME, State::Unknown, "none; whether the policy requests one is not known"),
        Some(Validated { result, since, message, failures, .. }) => {
            let message = if message.is_empty() { String::new() } else { format!(": {message}") };
            let (state, detail) = match result {
                ValidationResult::Passed => (State::Done, "passed".to_owned()),
                ValidationResult::Failed if *failures <= 1 => (State::Failed, format!("failed{message}")),
                ValidationResult::Failed => (State::Failed, format!("failed {failures} times in a row{message}")),
                ValidationResult::Skipped => (State::NotNeeded, format!("skipped{message}")),
            };
            Check::new(NAME, state, detail).since(Some(since.clone()))
        }
    };
    check.with(pods(facts, Role::Validation))
}
