//! The conditions of a GpuNode, from the same verdict as its phase. `Ready` and `Stalled` are compatible with kstatus.

use gpu_operator_crd::{NodeConditionType, Phase, Reason, policy::Stage};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{assess::verdict::Verdict, clock::Clock, note::shown, world::OwnCondition};

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    status: &'static str,
    reason: Reason,
    message: String,
}

/// `broken_stage` does not count against Ready until it has lasted for a while, `before` are the previous conditions, `generation` is that
/// of the GpuNode, and `health` is the condition of its Node.
pub fn of(
    verdict: &Verdict,
    broken_stage: Option<&Verdict>,
    health: Option<&OwnCondition>,
    generation: Option<i64>,
    before: &[Condition],
    clock: &Clock,
) -> Vec<Condition> {
    let healthy = health.cloned().unwrap_or_else(|| OwnCondition {
        status: "Unknown".to_owned(),
        reason: Reason::HealthUnknown.as_str().to_owned(),
        message: "the probe has not reported the health of the GPUs yet".to_owned(),
        since: None,
    });
    let broken = broken_stage.filter(|_| verdict.phase == Phase::Ready);
    let of_stage =
        |stage: Stage| of_stage(broken.filter(|broken| broken.phase == stage.phase()).unwrap_or(verdict), stage);
    let answers = [
        (NodeConditionType::Ready, ready(verdict)),
        (NodeConditionType::Stalled, stalled(verdict)),
        (NodeConditionType::DriverReady, of_stage(Stage::Driver)),
        (NodeConditionType::ToolkitReady, of_stage(Stage::Toolkit)),
        (NodeConditionType::DevicePluginReady, of_stage(Stage::DevicePlugin)),
    ];
    let answers = answers.into_iter().map(|(kind, answer)| {
        let Answer { status, reason, message } = answer;
        (kind, status.to_owned(), reason.as_str().to_owned(), message)
    });
    let healthy = (NodeConditionType::Healthy, healthy.status, healthy.reason, healthy.message);
    let condition = |(kind, status, reason, message): (NodeConditionType, String, String, String)| {
        let unchanged = before.iter().find(|known| known.type_ == kind.as_str() && known.status == status);
        Condition {
            type_: kind.as_str().to_owned(),
            status,
            reason,
            message: shown(&message),
            observed_generation: generation,
            last_transition_time: unchanged.map_or(Time(clock.now()), |known| known.last_transition_time.clone()),
        }
    };
    answers.chain([healthy]).map(condition).collect()
}

fn ready(verdict: &Verdict) -> Answer {
    let status = if verdict.phase == Phase::Ready { "True" } else { "False" };
    Answer { status, reason: verdict.reason, message: verdict.message.clone() }
}

/// Whether the node cannot proceed until a user, or time, resolves a problem.
fn stalled(verdict: &Verdict) -> Answer {
    if verdict.phase != Phase::Ready && verdict.reason.is_failure() {
        return Answer { status: "True", reason: verdict.reason, message: verdict.message.clone() };
    }
    Answer { status: "False", reason: Reason::Settled, message: "nothing is stalled".to_owned() }
}

/// Proof of a later stage implies the earlier ones.
fn of_stage(verdict: &Verdict, stage: Stage) -> Answer {
    let of_verdict = |status| Answer { status, reason: verdict.reason, message: verdict.message.clone() };
    if verdict.reason.is_away() || verdict.phase < Phase::Driver {
        return of_verdict("Unknown");
    }
    let name = stage.title();
    match verdict.phase.cmp(&stage.phase()) {
        std::cmp::Ordering::Less => Answer {
            status: "False",
            reason: Reason::StagePending,
            message: format!("the {name} is waiting for phase {}", verdict.phase.as_str()),
        },
        std::cmp::Ordering::Equal => of_verdict("False"),
        std::cmp::Ordering::Greater => {
            Answer { status: "True", reason: Reason::StageProven, message: format!("the {name} works") }
        }
    }
}
