//! Validation: a test on one of its GPUs proves that a node works, if its policy requests validation.

use crate::sim::{Faults, Sim, faults::Test, pod::end_test};
use gpu_operator_crd::{
    Phase,
    gpunode::{Validated, ValidationResult},
    reason::Reason,
};
use gpu_operator_plan::{
    Plan,
    output::{
        body::Kind,
        events::{Subject, Transition},
    },
    world::{ContainerState, Exit, Role},
};
use test_support::planned::Planned;

pub(crate) const ON_INSTALL: &str = "{readiness: {validation: {mode: OnInstall}}}";

/// Returns the number of tests so far.
pub(crate) fn tests(sim: &Sim) -> usize {
    sim.plans.iter().map(|plan| plan.tests().len()).sum()
}

fn record(sim: &Sim, node: &str) -> Validated {
    sim.status(node).validation.expect("a validation")
}

pub(crate) fn result(sim: &Sim, node: &str) -> Option<ValidationResult> {
    sim.status(node).validation.map(|validation| validation.result)
}

pub(crate) fn reported(sim: &Sim, node: &str) -> (Phase, Reason) {
    let status = sim.status(node);
    (status.phase, status.reason().expect("a reason"))
}

pub(crate) fn failing() -> Faults {
    Faults { test: Test::Fails("Failed to allocate device vector A".into()), ..Faults::default() }
}

pub(crate) fn hanging() -> Faults {
    Faults { test: Test::Hangs, ..Faults::default() }
}

fn full() -> Faults {
    Faults { test: Test::Unschedulable, ..Faults::default() }
}

/// Returns an H100 node with faults under a policy.
pub(crate) fn node(spec: &str, faults: Faults) -> Sim {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", spec);
    sim.faults.insert("a".into(), faults);
    sim
}

#[test]
fn a_node_is_ready_once_its_test_has_passed() {
    let mut sim = node(ON_INSTALL, hanging());
    sim.steps(40);
    assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::Validating));
    assert_eq!(sim.condition("all", "Ready").0, "False");
    sim.faults.clear();
    sim.settle();
    assert_eq!(reported(&sim, "a"), (Phase::Ready, Reason::AllGpusAllocatable));
    assert_eq!((result(&sim, "a"), tests(&sim)), (Some(ValidationResult::Passed), 1));
    assert!(sim.tests_on("a").is_empty());
    // The writes of one pass may complete in any order, so the pod is deleted after the pass that writes its result.
    let writes_status = |plan: &&Plan| !plan.node_statuses().is_empty();
    assert!(sim.plans.iter().filter(writes_status).all(|plan| plan.deleted(Kind::Pod).is_empty()));
}

#[test]
fn a_test_passes_by_its_output_and_a_users_by_its_exit_code() {
    const OWN: &str = "{readiness: {validation: {mode: OnInstall, image: {repository: example.com/burn, tag: v1}}}}";
    let (passed, failed) = (ValidationResult::Passed, ValidationResult::Failed);
    let silent = || Ok("\n".to_owned());
    let other = || Ok("[Vector addition of 50000 elements]\nFound 0 GPUs\n".to_owned());
    let unread = || Err("no answer within 2 s".to_owned());
    for (spec, log, result, expected) in [
        (ON_INSTALL, Ok("Test PASSED\nDone\n".to_owned()), passed, "printed \"Test PASSED\""),
        (
            ON_INSTALL,
            other(),
            failed,
            "without printing \"Test PASSED\": [Vector addition of 50000 elements]\nFound 0 GPUs",
        ),
        (ON_INSTALL, silent(), failed, "without printing \"Test PASSED\": its log is empty"),
        (ON_INSTALL, unread(), passed, "passed with exit code 0; its log cannot be read: no answer within 2 s"),
        (OWN, silent(), passed, "passed with exit code 0"),
    ] {
        let mut sim = node(spec, Faults::default());
        sim.test_log = log;
        let unread = spec == ON_INSTALL && !matches!(&sim.test_log, Ok(log) if log.contains("PASSED"));
        sim.steps(50);
        if unread {
            // The log may still become readable.
            assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::Validating));
            assert!(sim.status("a").validation.is_none());
            sim.steps(90);
        }
        let record = record(&sim, "a");
        assert_eq!(record.result, result, "{expected}");
        assert!(record.message.contains(expected), "{}", record.message);
        let phase = if result == passed { Phase::Ready } else { Phase::Validation };
        assert_eq!(reported(&sim, "a").0, phase);
    }
}

#[test]
fn the_log_of_a_test_is_requested_once_after_it_has_ended() {
    let mut sim = node(ON_INSTALL, Faults::default());
    let mut asked = Vec::new();
    for _ in 0..40 {
        let plan = gpu_operator_plan::plan(&sim.settings, &sim.catalogue, &sim.world(), sim.now);
        let ended = |pod: &&String| sim.pods[*pod].end.as_ref().is_some_and(|end| end.succeeded);
        assert!(plan.questions.log_tails.iter().all(|pod| ended(&pod)), "{:?}", plan.questions);
        // Until the log is read, no result is written, and the pod is kept.
        if !plan.questions.log_tails.is_empty() {
            assert!(plan.deleted(Kind::Pod).is_empty() && sim.status("a").validation.is_none());
        }
        asked.push(plan.questions.log_tails.len());
        sim.step();
        sim.sleep(1);
    }
    assert_eq!((asked.iter().sum::<usize>(), reported(&sim, "a").0), (1, Phase::Ready), "{asked:?}");
}

#[test]
fn a_failed_test_is_retried_with_backoff() {
    let mut sim = node(ON_INSTALL, failing());
    sim.steps(60);
    let status = sim.status("a");
    assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::ValidationFailed));
    assert!(status.message.contains("exit code 1: Failed to allocate device vector A"), "{}", status.message);
    assert_eq!((sim.condition("all", "Ready").0, tests(&sim)), ("False".into(), 1));
    let events = sim.plans.iter().flat_map(Plan::events);
    let of_node = |event: &&Transition| matches!(event.subject, Subject::Node(..));
    assert_eq!(events.filter(of_node).filter(|event| event.reason == Reason::ValidationFailed).count(), 1);
    let (mut last, mut waits) = (record(&sim, "a").since.0, Vec::new());
    for _ in 0..2000 {
        let before = tests(&sim);
        sim.step();
        if tests(&sim) > before {
            waits.push(sim.now.duration_since(last).as_secs());
            last = sim.now;
        }
        if waits.len() == 8 {
            break;
        }
        // Nothing changes between two tests.
        let next = sim.plans.last().and_then(|plan| plan.check_again).filter(|_| sim.tests_on("a").is_empty());
        sim.sleep(1);
        sim.now = sim.now.max(next.unwrap_or_default());
    }
    // A test takes some seconds.
    let minutes: Vec<_> = waits.into_iter().map(|seconds| (seconds + 20) / 60).collect();
    assert_eq!(minutes, [1, 2, 4, 8, 16, 32, 60, 60]);
    sim.faults.clear();
    for _ in 0..70 {
        sim.steps(1);
        sim.sleep(59);
    }
    sim.steps(10);
    assert_eq!((reported(&sim, "a").0, result(&sim, "a")), (Phase::Ready, Some(ValidationResult::Passed)));
}

#[test]
fn until_the_log_of_a_retry_is_read_the_previous_result_applies() {
    let mut sim = node(ON_INSTALL, failing());
    sim.steps(60);
    sim.faults.clear();
    sim.test_log = Err("no answer within 2 s".into());
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..400 {
        sim.step();
        sim.sleep(1);
        seen.insert(format!("{:?}", reported(&sim, "a").1));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["AllGpusAllocatable", "ValidationFailed"]);
    assert!(record(&sim, "a").message.contains("cannot be read"), "{}", record(&sim, "a").message);
}

#[test]
fn a_failed_node_is_tested_again_at_once_after_a_change() {
    for fix in [
        (|sim: &mut Sim| sim.reboot("a", 0)) as fn(&mut Sim),
        |sim| sim.apply_policy("all", "{readiness: {validation: {mode: OnInstall, image: {tag: mine}}}}"),
        |sim| {
            sim.apply_policy(
                "all",
                "{readiness: {validation: {mode: OnInstall}}, defaults: {devicePlugin: {image: {tag: v0.21.0}}}}",
            );
        },
    ] {
        let mut sim = node(ON_INSTALL, failing());
        sim.steps(500);
        assert!(record(&sim, "a").failures > 3);
        sim.faults.clear();
        fix(&mut sim);
        sim.steps(40);
        assert_eq!((reported(&sim, "a").0, result(&sim, "a")), (Phase::Ready, Some(ValidationResult::Passed)));
    }
}

#[test]
fn a_failed_node_is_tested_again_when_kubelet_reports_a_reboot() {
    let mut sim = node(ON_INSTALL, failing());
    sim.steps(500);
    let (before, records) = (tests(&sim), record(&sim, "a"));
    sim.faults.insert("a".into(), Faults { late_kubelet: true, ..failing() });
    sim.reboot("a", 0);
    sim.steps(10);
    assert_eq!((tests(&sim), record(&sim, "a")), (before, records));
    sim.faults.insert("a".into(), failing());
    sim.steps(10);
    assert_eq!(tests(&sim), before + 1);
}

#[test]
fn a_node_whose_gpus_are_all_in_use_needs_no_test() {
    let mut sim = node(ON_INSTALL, full());
    sim.steps(60);
    assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::Validating));
    sim.steps(90);
    sim.settle();
    assert_eq!(reported(&sim, "a"), (Phase::Ready, Reason::AllGpusAllocatable));
    assert_eq!((result(&sim, "a"), tests(&sim)), (Some(ValidationResult::Skipped), 1));
    assert!(record(&sim, "a").message.contains("Insufficient nvidia.com/gpu"), "{}", record(&sim, "a").message);
    assert!(sim.tests_on("a").is_empty());
    sim.faults.clear();
    sim.settle();
    assert_eq!(tests(&sim), 1, "the pods that used the GPUs are proof enough");
}

#[test]
fn a_restarted_operator_neither_loses_nor_repeats_a_test() {
    for away_at in 0..40 {
        let mut sim = node(ON_INSTALL, Faults::default());
        sim.steps(away_at);
        // The cluster continues without the operator, after a part of a plan has been written.
        let plan = sim.plan();
        sim.carry_out_first(&plan, (away_at % 4) as usize);
        let made = plan.tests().keys().filter(|name| sim.pods.contains_key(*name)).count();
        for _ in 0..30 {
            sim.surroundings();
            sim.sleep(1);
        }
        sim.settle();
        assert_eq!((result(&sim, "a"), tests(&sim) + made), (Some(ValidationResult::Passed), 1), "away at {away_at}");
    }
}

#[test]
fn two_nodes_are_tested_independently_at_the_same_time() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", ON_INSTALL);
    sim.faults.insert("a".into(), failing());
    sim.faults.insert("b".into(), hanging());
    sim.steps(20);
    assert_eq!((sim.tests_on("b").len(), reported(&sim, "a").1), (1, Reason::ValidationFailed));
    sim.faults.remove(&"b".into());
    sim.steps(20);
    assert_eq!((reported(&sim, "a").1, reported(&sim, "b").0), (Reason::ValidationFailed, Phase::Ready));
}

#[test]
fn nothing_is_tested_or_reported_unless_the_policy_requests_it() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    assert_eq!((tests(&sim), result(&sim, "a")), (0, None));
    let writes = |sim: &Sim| {
        sim.writes.iter().filter(|(object, _)| object.starts_with("node/")).map(|(_, count)| count).sum::<u32>()
    };
    let before = writes(&sim);
    sim.apply_policy("all", "{readiness: {validation: {mode: Never}}}");
    sim.settle();
    assert_eq!(writes(&sim), before);
}

#[test]
fn a_test_is_deleted_once_it_is_no_longer_requested() {
    for end in [
        (|sim: &mut Sim| sim.apply_policy("all", "{}")) as fn(&mut Sim),
        |sim| sim.label("a", gpu_operator_crd::keys::MANAGED, Some("false")),
        |sim| sim.delete_policy("all"),
    ] {
        let mut sim = node(ON_INSTALL, hanging());
        sim.steps(20);
        assert_eq!(sim.tests_on("a").len(), 1);
        end(&mut sim);
        sim.settle();
        assert!(sim.tests_on("a").is_empty());
        assert_eq!(result(&sim, "a"), None);
    }
}

#[test]
fn an_image_that_cannot_be_pulled_is_reported() {
    let mut sim = node(ON_INSTALL, hanging());
    sim.steps(15);
    for pod in sim.pods.values_mut().filter(|pod| pod.role == Role::Validation) {
        let (reason, message) = ("ImagePullBackOff".into(), "not found".into());
        pod.containers[0].state = ContainerState::Waiting { reason, message };
    }
    sim.steps(2);
    assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::ImagePullFailed));
}

#[test]
fn a_test_that_kubelet_ends_at_its_deadline_is_reported_as_such() {
    let mut sim = node(ON_INSTALL, hanging());
    sim.steps(15);
    for pod in sim.pods.values_mut().filter(|pod| pod.role == Role::Validation) {
        end_test(pod, Some(Exit { code: 137, message: "iteration 7".into() }));
        pod.end.as_mut().expect("an end").reason = "DeadlineExceeded".into();
    }
    sim.steps(2);
    let message = sim.status("a").message;
    assert!(
        message.contains("not completed within readiness.validation.timeout; exit code 137: iteration 7"),
        "{message}"
    );
}
