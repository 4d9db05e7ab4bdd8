//! Health: what the probe's judgement of the single GPUs makes of a node. The probe judges; here it is counted, put into
//! a sentence, and held against what the policy asks for.

use gpu_operator_crd::{
    health::{Action, HealthState},
    policy::Health,
    reason::Reason,
    report::{Gpu, NvmlState, Report},
};
use k8s_openapi::jiff::Timestamp;

use crate::{int_or_percent, note::Note, settings::REPORT_GRACE, time::later, world::PodFacts};

/// How many GPUs a sentence tells of; the report has them all.
const TOLD: usize = 3;

/// The health of a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeHealth {
    /// The worst among them. Absent while there is nothing to judge: no driver, or a move.
    pub state: Option<HealthState>,
    /// GPUs that must not be used, those included that the bus has lost.
    pub unhealthy: u32,
    /// GPUs that work, and that something is wrong with.
    pub degraded: u32,
    /// GPUs of which nothing is known.
    pub unknown: u32,
    /// What is to be said of it, unless all is well.
    pub note: Option<Note>,
    /// When the probe will count as silent if it is not back until then.
    pub check_again: Option<Timestamp>,
}

/// Whether a probe speaks, as far as kubelet can tell.
enum Voice {
    /// What it reported holds.
    Heard,
    /// It has just been started, and what it reported holds so long.
    MayReturn(Timestamp),
    /// Nothing is heard of it, and why.
    Silent(String),
}

/// The health of a node's GPUs, by its report and by whether its probe is there to speak. `missing` are GPUs that the bus
/// does not show any more.
#[must_use]
pub fn of(report: Option<&Report>, probe: Option<&PodFacts>, missing: u32, now: Timestamp) -> NodeHealth {
    let Some(report) = report.filter(|report| !report.gpus.is_empty() || missing > 0) else {
        return NodeHealth::default();
    };
    // Without a driver, or while it is being replaced, there is nothing that could be unknown.
    let judged = matches!(report.nvml.state, NvmlState::Answering | NvmlState::Failing);
    let check_again = match listen(probe, now) {
        _ if !judged => None,
        Voice::Heard => None,
        Voice::MayReturn(until) => Some(until),
        Voice::Silent(why) => {
            return NodeHealth {
                state: Some(HealthState::Unknown),
                unknown: count(&report.gpus, |_| true),
                note: Some(Note::new(Reason::HealthUnknown, why)),
                ..NodeHealth::default()
            };
        }
    };
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
        return NodeHealth { check_again, ..NodeHealth::default() };
    };
    // Of a GPU that is missing altogether the judgement of the node tells.
    let told = reason.filter(|_| unhealthy != missing || unknown + degraded > 0);
    let note = told.map(|reason| Note::new(reason, sentence(report)));
    NodeHealth { state: Some(state), unhealthy, degraded, unknown, note, check_again }
}

fn listen(probe: Option<&PodFacts>, now: Timestamp) -> Voice {
    let Some(pod) = probe else {
        return Voice::Silent("no probe runs on the node, so nothing is known of its GPUs' health".to_owned());
    };
    if pod.running() {
        return Voice::Heard;
    }
    let until = pod.running_since().max(pod.created).map(|since| later(since, REPORT_GRACE));
    match until.filter(|until| now < *until) {
        Some(until) => Voice::MayReturn(until),
        None => Voice::Silent(format!(
            "the probe's pod {} does not answer, so nothing is known of the GPUs' health; look at its log",
            pod.name
        )),
    }
}

/// The GPUs that something is wrong with: each with its address, its gravest cause and what to do.
fn sentence(report: &Report) -> String {
    let mut sick: Vec<&Gpu> = report
        .gpus
        .iter()
        .filter(|gpu| !matches!(gpu.health.state, HealthState::Healthy | HealthState::Unknown))
        .collect();
    sick.sort_by_key(|gpu| (rank(gpu.health.state), gpu.pci_address.clone()));
    let mut told: Vec<String> = sick.iter().take(TOLD).map(|gpu| line(gpu)).collect();
    if sick.len() > TOLD {
        told.push(format!("and {} more", sick.len() - TOLD));
    }
    if told.is_empty() {
        let why = report.nvml.message.as_deref().unwrap_or("NVML has not told of them lately");
        return format!("nothing is known of GPUs: {why}");
    }
    told.join("; ")
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
    let state: &str = health.state.into();
    let action: &str = health.action.into();
    let cause = health.causes.first().map_or_else(String::new, |cause| {
        let kind: &str = cause.kind.into();
        let number = cause.xid.map(|xid| format!(" {xid}")).unwrap_or_default();
        let evidence = if cause.evidence.is_empty() { String::new() } else { format!(" ({})", cause.evidence) };
        format!(", {kind}{number}{evidence}")
    });
    let advice = if health.action == Action::None { String::new() } else { format!(": {action}") };
    format!("GPU {} is {state}{cause}{advice}", gpu.pci_address)
}

/// How many GPUs of a node must not be unhealthy for it to count as ready.
#[must_use]
pub fn required(health: &Health, expected: u32) -> u32 {
    health.min_healthy_gpus.as_ref().map_or(expected, |wanted| int_or_percent::of(wanted, expected).min(expected))
}

fn count(gpus: &[Gpu], which: impl Fn(&Gpu) -> bool) -> u32 {
    u32::try_from(gpus.iter().filter(|gpu| which(gpu)).count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{
        health::{Cause, CauseKind, GpuHealth, Severity},
        report::NvmlFacts,
    };
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::SignedDuration};

    use super::*;
    use crate::world::{ContainerFacts, ContainerState, Role};

    fn now() -> Timestamp {
        "2026-01-01T12:00:00Z".parse().unwrap()
    }

    /// A probe's pod that was made, and whose container was started, so long ago.
    fn probe(seconds: i64, ready: bool) -> PodFacts {
        let then = now() - SignedDuration::from_secs(seconds);
        let state = ContainerState::Running(Some(then));
        let container = ContainerFacts { name: "nvml-probe".into(), state, last_failure: None, ready };
        PodFacts {
            name: "nvml-probe-x".into(),
            node: "a".into(),
            role: Role::Probe,
            group: None,
            applied: None,
            created: Some(then),
            gone_by: None,
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
                kind: CauseKind::Xid,
                severity: if fatal { Severity::Fatal } else { Severity::Warning },
                xid: Some(if fatal { 79 } else { 63 }),
                count: None,
                evidence: "fell off the bus".into(),
                since: Time(now()),
                recovering: false,
            };
            let causes = if *state == HealthState::Healthy { vec![] } else { vec![cause] };
            let action = if fatal { Action::RebootNode } else { Action::None };
            let health = GpuHealth { state: *state, action, causes, ..GpuHealth::default() };
            Gpu { pci_address: format!("0000:0{index}:00.0"), health, ..Gpu::default() }
        };
        let nvml = NvmlFacts { state: NvmlState::Answering, ..NvmlFacts::default() };
        Report { gpus: states.iter().enumerate().map(gpu).collect(), nvml, ..Report::default() }
    }

    #[test]
    fn the_worst_gpu_speaks_for_the_node_and_the_counts_for_the_rest() {
        use HealthState::{Degraded, Healthy, Recovering, Unhealthy, Unknown};
        for (states, missing, expected, reason) in [
            (vec![Healthy, Healthy], 0, (Healthy, 0, 0, 0), None),
            (vec![Healthy, Degraded], 0, (Degraded, 0, 1, 0), Some(Reason::GpuDegraded)),
            (vec![Healthy, Recovering], 0, (Recovering, 0, 1, 0), Some(Reason::GpuDegraded)),
            (vec![Degraded, Unknown], 0, (Unknown, 0, 1, 1), Some(Reason::HealthUnknown)),
            (vec![Unhealthy, Unknown, Degraded], 0, (Unhealthy, 1, 1, 1), Some(Reason::GpuUnhealthy)),
            // That one is missing is told of elsewhere.
            (vec![Healthy], 1, (Unhealthy, 1, 0, 0), None),
            (vec![Degraded], 1, (Unhealthy, 1, 1, 0), Some(Reason::GpuUnhealthy)),
        ] {
            let health = of(Some(&report(&states)), Some(&probe(1000, true)), missing, now());
            let counts = (health.state.unwrap(), health.unhealthy, health.degraded, health.unknown);
            assert_eq!(counts, expected, "{states:?}");
            assert_eq!(health.note.map(|note| note.reason), reason, "{states:?}");
        }
    }

    #[test]
    fn the_sentence_names_the_gpu_its_cause_and_what_to_do_the_worst_first() {
        let report = report(&[HealthState::Degraded, HealthState::Unhealthy]);
        let note = of(Some(&report), Some(&probe(1000, true)), 0, now()).note.unwrap();
        assert_eq!(
            note.message,
            "GPU 0000:01:00.0 is Unhealthy, Xid 79 (fell off the bus): RebootNode; GPU 0000:00:00.0 is Degraded, Xid 63 (fell off the bus)"
        );
    }

    #[test]
    fn a_silent_probe_makes_all_unknown_and_never_healthy() {
        let report = report(&[HealthState::Healthy; 8]);
        for probe in [None, Some(probe(1000, false))] {
            let health = of(Some(&report), probe.as_ref(), 0, now());
            assert_eq!((health.state, health.unknown), (Some(HealthState::Unknown), 8));
            assert_eq!(health.note.unwrap().reason, Reason::HealthUnknown);
        }
    }

    #[test]
    fn a_probe_that_has_just_been_started_has_a_minute_to_be_heard_again() {
        let report = report(&[HealthState::Healthy]);
        let health = of(Some(&report), Some(&probe(20, false)), 0, now());
        assert_eq!((health.state, health.note), (Some(HealthState::Healthy), None));
        assert_eq!(health.check_again, Some(now() + SignedDuration::from_secs(40)));
    }

    #[test]
    fn where_there_is_no_driver_there_is_nothing_to_judge() {
        let mut report = report(&[HealthState::Unknown]);
        for state in [NvmlState::Absent, NvmlState::Released] {
            report.nvml.state = state;
            assert_eq!(of(Some(&report), Some(&probe(1000, true)), 0, now()).state, None);
        }
        assert_eq!(of(None, None, 0, now()), NodeHealth::default());
    }

    #[test]
    fn as_many_gpus_must_be_well_as_the_policy_says() {
        let health = |text: &str| serde_yaml::from_str::<Health>(text).unwrap();
        for (policy, expected, wanted) in [
            ("{}", 8, 8),
            ("{minHealthyGpus: 7}", 8, 7),
            ("{minHealthyGpus: 16}", 8, 8),
            ("{minHealthyGpus: 50%}", 7, 4),
            ("{minHealthyGpus: 0%}", 8, 0),
        ] {
            assert_eq!(required(&health(policy), expected), wanted, "{policy}");
        }
    }
}
