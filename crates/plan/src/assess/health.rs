//! The health of a node: counts the states that the probe reports for each GPU, and writes the message.

use gpu_operator_crd::{
    Open,
    health::HealthState,
    policy::Health,
    reason::Reason,
    report::{Gpu, NvmlState, Report},
};

use crate::{
    clock::Clock,
    note::Note,
    pool_settings::int_or_percent,
    settings::REPORT_GRACE,
    world::{ObservedTime, PodFacts},
};

/// The report lists all.
const LISTED: usize = 3;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// The worst state. `None` while there is nothing to assess: without a driver, or during an update.
    pub state: Option<HealthState>,
    /// Must not be used; includes those that are missing on the bus.
    pub unhealthy: u32,
    /// Work, but have a problem or are recovering.
    pub degraded: u32,
    pub unknown: u32,
    pub note: Option<Note>,
}

/// `missing` is the number of GPUs that are no longer on the bus.
pub fn of(report: Option<&Report>, probe: Option<&PodFacts>, missing: u32, clock: &Clock) -> NodeHealth {
    let Some(report) = report.filter(|report| !report.gpus.is_empty() || missing > 0) else {
        return NodeHealth::default();
    };
    // Without a driver, or while it is being replaced, no health can be unknown.
    let judged = matches!(report.nvml.state, NvmlState::Answering | NvmlState::Failing);
    if judged && let Some(why) = why_silent(probe, clock) {
        return NodeHealth {
            state: Some(HealthState::Unknown),
            unknown: count(&report.gpus, |_| true),
            note: Some(Note::new(Reason::HealthUnknown, why)),
            ..NodeHealth::default()
        };
    }
    let is = |state: HealthState| count(&report.gpus, |gpu| gpu.health.state == state);
    let unhealthy = is(HealthState::Unhealthy) + missing;
    let degraded = is(HealthState::Degraded) + is(HealthState::Recovering);
    let unknown = if judged { is(HealthState::Unknown) } else { 0 };
    let (state, reason) = if unhealthy > 0 {
        (HealthState::Unhealthy, Some(Reason::GpuUnhealthy))
    } else if unknown > 0 {
        (HealthState::Unknown, Some(Reason::HealthUnknown))
    } else if degraded > 0 {
        let state = if is(HealthState::Degraded) > 0 { HealthState::Degraded } else { HealthState::Recovering };
        (state, Some(Reason::GpuDegraded))
    } else if judged {
        (HealthState::Healthy, None)
    } else {
        return NodeHealth::default();
    };
    // Missing GPUs are reported by the node's verdict.
    let reason = reason.filter(|_| unhealthy != missing || unknown + degraded > 0);
    let note = reason.map(|reason| Note::new(reason, sentence(report)));
    NodeHealth { state: Some(state), unhealthy, degraded, unknown, note }
}

/// Returns why the probe's last report is not valid any more. According to kubelet the probe is not running, and had time to run again.
fn why_silent(probe: Option<&PodFacts>, clock: &Clock) -> Option<String> {
    let Some(pod) = probe else {
        return Some("the health of the GPUs is unknown: no probe pod runs on the node".to_owned());
    };
    if pod.running() {
        return None;
    }
    let since = [pod.running_since(), pod.created].into_iter().flatten().map(ObservedTime::local).max();
    let is_silent = since.is_none_or(|since| clock.passed(since, REPORT_GRACE));
    is_silent.then(|| format!("the health of the GPUs is unknown: probe pod {} does not answer; see its log", pod.name))
}

/// Each GPU with its address, its most severe cause and the required action.
fn sentence(report: &Report) -> String {
    let mut affected: Vec<&Gpu> = report
        .gpus
        .iter()
        .filter(|gpu| !matches!(gpu.health.state, HealthState::Healthy | HealthState::Unknown))
        .collect();
    affected.sort_by_key(|gpu| (rank(gpu.health.state), gpu.pci_address.clone()));
    let mut lines: Vec<String> = affected.iter().take(LISTED).map(|gpu| line(gpu)).collect();
    if affected.len() > LISTED {
        lines.push(format!("and {} more", affected.len() - LISTED));
    }
    if lines.is_empty() {
        let why = report.nvml.message.as_deref().unwrap_or("NVML has not reported them recently");
        return format!("the health of the GPUs is unknown: {why}");
    }
    lines.join("; ")
}

fn rank(state: HealthState) -> u8 {
    match state {
        HealthState::Unhealthy => 0,
        HealthState::Degraded => 1,
        HealthState::Recovering => 2,
        HealthState::Unknown => 3,
        HealthState::Healthy => 4,
    }
}

fn line(gpu: &Gpu) -> String {
    let health = &gpu.health;
    let state = <&str>::from(health.state).to_lowercase();
    let cause = health.causes.first().map_or_else(String::new, |cause| {
        let kind = cause.kind.as_str();
        let number = cause.xid.map(|xid| format!(" {xid}")).unwrap_or_default();
        let evidence = if cause.evidence.is_empty() { String::new() } else { format!(" ({})", cause.evidence) };
        format!(", {kind}{number}{evidence}")
    });
    let advice = match &health.action {
        Open::Known(action) => action.advice().map_or_else(String::new, |advice| format!(": {advice}")),
        Open::Other(action) => format!("; required action: {action}"),
    };
    format!("GPU {} is {state}{cause}{advice}", gpu.pci_address)
}

/// Returns how many GPUs must not be unhealthy for a node to be ready.
pub fn required(health: &Health, expected: u32) -> u32 {
    health.min_healthy_gpus.as_ref().map_or(expected, |wanted| int_or_percent(wanted, expected).min(expected))
}

fn count(gpus: &[Gpu], which: impl Fn(&Gpu) -> bool) -> u32 {
    u32::try_from(gpus.iter().filter(|gpu| which(gpu)).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{
        health::{Action, Cause, CauseKind, GpuHealth, Severity},
        report::NvmlFacts,
    };
    use k8s_openapi::{
        apimachinery::pkg::apis::meta::v1::Time,
        jiff::{SignedDuration, Timestamp},
    };

    use super::*;
    use crate::world::{ContainerFacts, ContainerState, Role};

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    /// Returns a probe pod that was created, and whose container was started, this many seconds ago.
    fn probe(seconds: i64, ready: bool) -> PodFacts {
        let then = now() - SignedDuration::from_secs(seconds);
        let state = ContainerState::Running(Some(then.into()));
        let container = ContainerFacts { name: "nvml-probe".into(), state, last_failure: None, ready };
        PodFacts {
            name: "nvml-probe-x".into(),
            node: "a".into(),
            role: Role::Probe,
            revision: None,
            applied: None,
            created: Some(then.into()),
            sandbox_since: Some(then.into()),
            deletion: None,
            unschedulable: None,
            end: None,
            init: vec![],
            containers: vec![container],
        }
    }

    fn report(states: &[HealthState]) -> Report {
        let gpu = |(index, state): (usize, &HealthState)| {
            let fatal = *state == HealthState::Unhealthy;
            let cause = Cause {
                kind: CauseKind::Xid.into(),
                severity: if fatal { Severity::Fatal } else { Severity::Warning },
                xid: Some(if fatal { 79 } else { 63 }),
                count: None,
                evidence: "fell off the bus".into(),
                since: Time(now()),
                recovering: false,
            };
            let causes = if *state == HealthState::Healthy { vec![] } else { vec![cause] };
            let action = if fatal { Action::RebootNode } else { Action::None };
            let health = GpuHealth { state: *state, action: action.into(), causes, ..GpuHealth::default() };
            Gpu { pci_address: format!("0000:0{index}:00.0"), health, ..Gpu::default() }
        };
        let nvml = NvmlFacts { state: NvmlState::Answering, ..NvmlFacts::default() };
        Report { gpus: states.iter().enumerate().map(gpu).collect(), nvml, ..Report::default() }
    }

    #[test]
    fn a_node_has_the_state_of_its_worst_gpu_and_counts_the_others() {
        use HealthState::{Degraded, Healthy, Recovering, Unhealthy, Unknown};
        for (states, missing, expected, reason) in [
            (vec![Healthy, Healthy], 0, (Healthy, 0, 0, 0), None),
            (vec![Healthy, Degraded], 0, (Degraded, 0, 1, 0), Some(Reason::GpuDegraded)),
            (vec![Healthy, Recovering], 0, (Recovering, 0, 1, 0), Some(Reason::GpuDegraded)),
            (vec![Degraded, Unknown], 0, (Unknown, 0, 1, 1), Some(Reason::HealthUnknown)),
            (vec![Unhealthy, Unknown, Degraded], 0, (Unhealthy, 1, 1, 1), Some(Reason::GpuUnhealthy)),
            // A missing GPU alone is reported by the verdict.
            (vec![Healthy], 1, (Unhealthy, 1, 0, 0), None),
            (vec![Degraded], 1, (Unhealthy, 1, 1, 0), Some(Reason::GpuUnhealthy)),
        ] {
            let health = of(Some(&report(&states)), Some(&probe(1000, true)), missing, &Clock::at(now()));
            let counts = (health.state.unwrap(), health.unhealthy, health.degraded, health.unknown);
            assert_eq!(counts, expected, "{states:?}");
            assert_eq!(health.note.map(|note| note.reason), reason, "{states:?}");
        }
    }

    #[test]
    fn the_message_lists_gpus_by_severity_with_cause_and_action() {
        let report = report(&[HealthState::Degraded, HealthState::Unhealthy]);
        let note = of(Some(&report), Some(&probe(1000, true)), 0, &Clock::at(now())).note.unwrap();
        assert_eq!(
            note.message,
            "GPU 0000:01:00.0 is unhealthy, Xid 79 (fell off the bus): reboot the node; GPU 0000:00:00.0 is degraded, Xid 63 (fell off the bus)"
        );
    }

    #[test]
    fn without_a_running_probe_all_gpus_are_unknown() {
        let report = report(&[HealthState::Healthy; 8]);
        for probe in [None, Some(probe(1000, false))] {
            let health = of(Some(&report), probe.as_ref(), 0, &Clock::at(now()));
            assert_eq!((health.state, health.unknown), (Some(HealthState::Unknown), 8));
            assert_eq!(health.note.unwrap().reason, Reason::HealthUnknown);
        }
    }

    #[test]
    fn the_last_report_is_valid_while_the_probe_starts() {
        let report = report(&[HealthState::Healthy]);
        let clock = Clock::at(now());
        let health = of(Some(&report), Some(&probe(20, false)), 0, &clock);
        assert_eq!((health.state, health.note), (Some(HealthState::Healthy), None));
        assert_eq!(clock.next(), Some(now() + SignedDuration::from_secs(40)));
    }

    #[test]
    fn without_a_driver_there_is_no_health() {
        let mut report = report(&[HealthState::Unknown]);
        for state in [NvmlState::Absent, NvmlState::Released] {
            report.nvml.state = state;
            assert_eq!(of(Some(&report), Some(&probe(1000, true)), 0, &Clock::at(now())).state, None);
        }
        assert_eq!(of(None, None, 0, &Clock::at(now())), NodeHealth::default());
    }

    #[test]
    fn the_required_number_of_healthy_gpus_follows_the_policy() {
        let health = |text: &str| serde_yaml::from_str::<Health>(text).unwrap();
        for (policy, expected, wanted) in [
            ("{}", 8, 8),
            ("{minHealthyGPUs: 7}", 8, 7),
            ("{minHealthyGPUs: 16}", 8, 8),
            ("{minHealthyGPUs: 50%}", 7, 4),
            ("{minHealthyGPUs: 0%}", 8, 0),
        ] {
            assert_eq!(required(&health(policy), expected), wanted, "{policy}");
        }
    }
}
