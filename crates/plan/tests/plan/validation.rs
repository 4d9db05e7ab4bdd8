//! Validation: a test on one of its GPUs proves that a node works, if its policy requests validation.

use crate::sim::{Faults, Sim, machine::Test, node::end_test};
use gpu_operator_crd::{
    Phase,
    reason::Reason,
    validated::{Validated, ValidationResult},
};
use gpu_operator_plan::output::write::Kind;
use gpu_operator_plan::{
    Plan,
    output::events::{Subject, Transition},
    world::{ContainerState, Exit, Role},
};
use k8s_openapi::api::core::v1::Pod;
use test_support::planned::Planned;

pub(crate) const ON_INSTALL: &str = "{readiness: {validation: {mode: OnInstall}}}";
const ON_UPGRADE: &str = "{readiness: {validation: {mode: OnUpgrade}}}";
const UPGRADED: &str =
    "{readiness: {validation: {mode: OnUpgrade}}, defaults: {devicePlugin: {image: {tag: v0.21.0}}}}";

/// Returns the number of tests so far.
fn tests(sim: &Sim) -> usize {
    sim.plans.iter().map(|plan| plan.pods().len()).sum()
}

/// Returns the pod of the only test so far.
fn test_pod(sim: &Sim) -> Pod {
    let made: Vec<_> = sim.plans.iter().flat_map(|plan| plan.pods().into_values()).collect();
    assert_eq!(made.len(), 1, "{made:#?}");
    made[0].clone()
}

fn record(sim: &Sim, node: &str) -> Validated {
    sim.status(node).validation.expect("a validation")
}

fn result(sim: &Sim, node: &str) -> Option<ValidationResult> {
    sim.status(node).validation.map(|validation| validation.result)
}

fn reported(sim: &Sim, node: &str) -> (Phase, Reason) {
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

/// Runs for this number of seconds, whether or not anything changes.
fn pass(sim: &mut Sim, seconds: u32) {
    for _ in 0..seconds {
        sim.step();
        sim.sleep(1);
    }
}

#[test]
fn a_node_is_ready_once_its_test_has_passed_and_the_pod_is_deleted() {
    let mut sim = node(ON_INSTALL, hanging());
    pass(&mut sim, 40);
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
fn the_default_test_passes_by_its_output_and_a_users_test_by_its_exit_code() {
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
        pass(&mut sim, 50);
        if unread {
            // The log may still become readable.
            assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::Validating));
            assert!(sim.status("a").validation.is_none());
            pass(&mut sim, 90);
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
fn a_test_requests_one_gpu_of_its_node_and_never_preempts() {
    let mut sim = node(
        "{readiness: {validation: {mode: OnInstall, timeout: 90s}}, images: {registry: mirror.example.com, pullSecrets: [{name: mirror}]}}",
        Faults::default(),
    );
    sim.settle();
    let pod = test_pod(&sim);
    insta::assert_yaml_snapshot!("test", pod);
}

#[test]
fn a_test_requests_the_resource_that_its_node_offers() {
    let spec = "{readiness: {validation: {mode: OnInstall}}, defaults: {devicePlugin: {sharing: {timeSlicing: {replicas: 4, renameByDefault: true}}}}}";
    let mut sim = node(spec, Faults::default());
    sim.settle();
    let spec = test_pod(&sim).spec.expect("a spec");
    let limits = spec.containers[0].resources.clone().expect("resources").limits.expect("limits");
    assert_eq!(limits.into_keys().collect::<Vec<_>>(), ["nvidia.com/gpu.shared"]);
}

#[test]
fn the_default_test_matches_the_cuda_version_of_an_old_driver_and_a_users_image_is_kept() {
    for (spec, image) in [
        (ON_INSTALL, "nvcr.io/nvidia/k8s/cuda-sample:vectoradd-cuda11.7.1"),
        (
            "{readiness: {validation: {mode: OnInstall, image: {repository: example.com/burn, tag: v1}}}}",
            "example.com/burn:v1",
        ),
    ] {
        let mut sim = Sim::new().gpu_node("a", "102d", 4).policy("all", spec);
        sim.settle();
        assert_eq!(test_pod(&sim).spec.expect("a spec").containers[0].image.as_deref(), Some(image));
    }
}

#[test]
fn a_failure_is_reported_with_the_tests_log_and_retried_with_backoff() {
    let mut sim = node(ON_INSTALL, failing());
    pass(&mut sim, 60);
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
        pass(&mut sim, 1);
        sim.sleep(59);
    }
    pass(&mut sim, 10);
    assert_eq!((reported(&sim, "a").0, result(&sim, "a")), (Phase::Ready, Some(ValidationResult::Passed)));
}

#[test]
fn until_the_log_of_a_retry_is_read_the_previous_result_applies() {
    let mut sim = node(ON_INSTALL, failing());
    pass(&mut sim, 60);
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
fn a_failed_node_is_tested_again_at_once_after_a_reboot_and_with_another_image_or_plugin() {
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
        pass(&mut sim, 500);
        assert!(record(&sim, "a").failures > 3);
        sim.faults.clear();
        fix(&mut sim);
        pass(&mut sim, 40);
        assert_eq!((reported(&sim, "a").0, result(&sim, "a")), (Phase::Ready, Some(ValidationResult::Passed)));
    }
}

#[test]
fn a_failed_node_is_tested_again_when_kubelet_and_not_only_the_probe_reports_the_reboot() {
    let mut sim = node(ON_INSTALL, failing());
    pass(&mut sim, 500);
    let (before, records) = (tests(&sim), record(&sim, "a"));
    sim.faults.insert("a".into(), Faults { late_kubelet: true, ..failing() });
    sim.reboot("a", 0);
    pass(&mut sim, 10);
    assert_eq!((tests(&sim), record(&sim, "a")), (before, records));
    sim.faults.insert("a".into(), failing());
    pass(&mut sim, 10);
    assert_eq!(tests(&sim), before + 1);
}

#[test]
fn an_image_that_cannot_be_pulled_is_reported_while_it_is_retried() {
    let mut sim = node(ON_INSTALL, hanging());
    pass(&mut sim, 15);
    for pod in sim.pods.values_mut().filter(|pod| pod.role == Role::Validation) {
        let (reason, message) = ("ImagePullBackOff".into(), "not found".into());
        pod.containers[0].state = ContainerState::Waiting { reason, message };
    }
    pass(&mut sim, 2);
    assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::ImagePullFailed));
}

#[test]
fn a_test_that_kubelet_ends_at_its_deadline_is_reported_as_such() {
    let mut sim = node(ON_INSTALL, hanging());
    pass(&mut sim, 15);
    for pod in sim.pods.values_mut().filter(|pod| pod.role == Role::Validation) {
        end_test(pod, Some(Exit { code: 137, message: "iteration 7".into() }));
        pod.end.as_mut().expect("an end").reason = "DeadlineExceeded".into();
    }
    pass(&mut sim, 2);
    let message = sim.status("a").message;
    assert!(
        message.contains("not completed within readiness.validation.timeout; exit code 137: iteration 7"),
        "{message}"
    );
}

#[test]
fn a_node_whose_gpus_are_all_in_use_becomes_ready_without_a_test() {
    let mut sim = node(ON_INSTALL, full());
    pass(&mut sim, 60);
    assert_eq!(reported(&sim, "a"), (Phase::Validation, Reason::Validating));
    pass(&mut sim, 90);
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
fn a_node_that_was_ready_before_is_not_tested() {
    let mut sim = Sim::settled_fleet("{}", &["a", "b"]);
    sim.apply_policy("all", ON_UPGRADE);
    for _ in 0..30 {
        sim.step();
        sim.sleep(1);
        assert_eq!((reported(&sim, "a").0, reported(&sim, "b").0), (Phase::Ready, Phase::Ready));
    }
    assert_eq!((result(&sim, "a"), tests(&sim)), (Some(ValidationResult::Skipped), 0));
    // The node is not tested after an outage and a reboot either.
    sim.node_mut("a").ready = false;
    pass(&mut sim, 40);
    assert_eq!(reported(&sim, "a").1, Reason::NodeNotReady);
    sim.node_mut("a").ready = true;
    sim.reboot("a", 0);
    sim.settle();
    assert_eq!((reported(&sim, "a").0, tests(&sim)), (Phase::Ready, 0));
}

#[test]
fn an_upgrade_is_complete_once_the_test_has_passed_and_a_failed_test_halts_the_pool() {
    let mut sim = Sim::settled_fleet(ON_UPGRADE, &["a", "b"]);
    assert_eq!(tests(&sim), 2);
    sim.faults.insert("a".into(), failing());
    sim.apply_policy("all", UPGRADED);
    pass(&mut sim, 50);
    assert_eq!((reported(&sim, "a").1, reported(&sim, "b").1), (Reason::ValidationFailed, Reason::RolloutPending));
    assert!(sim.is_moving("a") && !sim.is_moving("b"));
    assert_eq!(sim.condition("all", "Stalled"), ("True".into(), "RolloutHalted".into()));
    sim.faults.clear();
    pass(&mut sim, 120);
    sim.settle();
    assert_eq!(
        (result(&sim, "a"), result(&sim, "b")),
        (Some(ValidationResult::Passed), Some(ValidationResult::Passed))
    );
    assert_eq!((tests(&sim), sim.condition("all", "Ready").0), (5, "True".into()));
}

#[test]
fn with_mode_on_install_an_upgrade_is_not_tested() {
    let mut sim = Sim::settled_fleet(ON_INSTALL, &["a", "b"]);
    sim.apply_policy(
        "all",
        "{readiness: {validation: {mode: OnInstall}}, defaults: {devicePlugin: {image: {tag: v0.21.0}}}}",
    );
    sim.settle();
    assert_eq!((tests(&sim), reported(&sim, "a").0), (2, Phase::Ready));
}

#[test]
fn a_driver_is_updated_even_while_its_node_is_being_tested() {
    let mut sim = node(
        "{readiness: {validation: {mode: OnUpgrade}}, pools: [{name: p, driver: {version: 595.91.07}}]}",
        hanging(),
    );
    pass(&mut sim, 40);
    assert_eq!(reported(&sim, "a").1, Reason::Validating);
    sim.faults.clear();
    sim.apply_policy(
        "all",
        "{readiness: {validation: {mode: OnUpgrade}}, pools: [{name: p, driver: {version: 590.10.01}}]}",
    );
    sim.settle();
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
    assert_eq!((reported(&sim, "a").0, result(&sim, "a")), (Phase::Ready, Some(ValidationResult::Passed)));
}

#[test]
fn an_operator_that_is_restarted_neither_loses_nor_repeats_a_test() {
    for away_at in 0..40 {
        let mut sim = node(ON_INSTALL, Faults::default());
        pass(&mut sim, away_at);
        // The cluster continues without the operator, after a part of a plan has been written.
        let plan = sim.plan();
        sim.carry_out_first(&plan, (away_at % 4) as usize);
        let made = plan.pods().keys().filter(|name| sim.pods.contains_key(*name)).count();
        for _ in 0..30 {
            sim.surroundings();
            sim.sleep(1);
        }
        sim.settle();
        assert_eq!((result(&sim, "a"), tests(&sim) + made), (Some(ValidationResult::Passed), 1), "away at {away_at}");
    }
}

#[test]
fn no_test_is_started_on_a_node_whose_update_begins() {
    let pool = |name: &str, version: &str| {
        format!(
            "{{name: {name}, match: {{nodeSelector: {{matchLabels: {{zone: {name}}}}}}}, driver: {{version: {version}}}}}"
        )
    };
    let pools = format!("[{}, {}]", pool("old", "595.91.07"), pool("new", "590.10.01"));
    let spec = format!("{{readiness: {{validation: {{mode: OnInstall}}}}, pools: {pools}}}");
    let mut sim = Sim::new().gpu_node("b", "2330", 8).policy("all", &spec);
    sim.label("b", "zone", Some("new"));
    sim.settle();
    sim.join("a", "2330", 8);
    sim.label("a", "zone", Some("old"));
    while sim.plan().pods().is_empty() {
        assert!(sim.step(), "the test is due");
        sim.sleep(1);
    }
    // A test would use a GPU, so that the update would be given up for it, and begin again once the test is deleted.
    sim.label("a", "zone", Some("new"));
    let begins = sim.plan();
    let begun = begins.specs()[&"a".into()].spec.rollout.is_some();
    assert!(begun && begins.pods().is_empty(), "{begins:#?}");
    sim.settle();
    assert_eq!(sim.status("a").phase, Phase::Ready);
    assert_eq!(sim.report("a").driver.loaded.as_deref(), Some("590.10.01"));
}

#[test]
fn two_nodes_are_tested_independently_at_the_same_time() {
    let mut sim = Sim::new().gpu_node("a", "2330", 8).gpu_node("b", "2330", 8).policy("all", ON_INSTALL);
    sim.faults.insert("a".into(), failing());
    sim.faults.insert("b".into(), hanging());
    pass(&mut sim, 20);
    assert_eq!((sim.tests_on("b").len(), reported(&sim, "a").1), (1, Reason::ValidationFailed));
    sim.faults.remove(&"b".into());
    pass(&mut sim, 20);
    assert_eq!((reported(&sim, "a").1, reported(&sim, "b").0), (Reason::ValidationFailed, Phase::Ready));
}

#[test]
fn nothing_is_tested_or_reported_unless_the_policy_requests_it() {
    let mut sim = Sim::settled_fleet("{}", &["a"]);
    assert_eq!((tests(&sim), result(&sim, "a")), (0, None));
    sim.apply_policy("all", "{readiness: {validation: {mode: Never}}}");
    let before = sim.writes.clone();
    sim.settle();
    assert_eq!(
        sim.writes_to("node"),
        {
            let mut had = Sim::new();
            had.writes = before;
            had
        }
        .writes_to("node")
    );
}

#[test]
fn a_test_is_deleted_once_it_is_no_longer_requested() {
    for end in [
        (|sim: &mut Sim| sim.apply_policy("all", "{}")) as fn(&mut Sim),
        |sim| sim.label("a", gpu_operator_crd::keys::MANAGED, Some("false")),
        |sim| sim.delete_policy("all"),
    ] {
        let mut sim = node(ON_INSTALL, hanging());
        pass(&mut sim, 20);
        assert_eq!(sim.tests_on("a").len(), 1);
        end(&mut sim);
        sim.settle();
        assert!(sim.tests_on("a").is_empty());
        assert_eq!(result(&sim, "a"), None);
    }
}

#[test]
fn the_test_gets_the_path_where_googles_plugin_mounts_the_driver() {
    const RUN_FILE: &str =
        "driver: {source: RunFile, sha256: a1, version: 580.173.02, image: {repository: own/run-file, tag: a}}";
    for (defaults, folder) in [
        (format!("{RUN_FILE}, devicePlugin: {{flavor: Gke}}"), Some("/usr/local/nvidia/lib64")),
        (RUN_FILE.to_owned(), None),
        (String::new(), None),
    ] {
        let spec = format!("{{readiness: {{validation: {{mode: OnInstall}}}}, defaults: {{{defaults}}}}}");
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", &spec);
        sim.settle();
        let pod = test_pod(&sim).spec.expect("a spec");
        let env = pod.containers[0].env.iter().flatten().find(|variable| variable.name == "LD_LIBRARY_PATH");
        assert_eq!(env.and_then(|variable| variable.value.as_deref()), folder, "{defaults}");
    }
}

#[test]
fn the_test_uses_nvidias_runtime_class_only_where_plain_pods_get_no_gpu() {
    for (runtime, toolkit, class) in [
        ("containerd://2.1.4", "{}", None),
        ("containerd://1.7.27", "{}", None),
        ("docker://27.0.3", "{}", None),
        ("docker://27.0.3", "{setAsDefault: false, runtimeClass: gpu}", Some("gpu")),
        ("containerd://2.1.4", "{injection: Runtime, setAsDefault: false}", Some("nvidia")),
        ("containerd://1.7.27", "{injection: None}", None),
    ] {
        let spec = format!("{{readiness: {{validation: {{mode: OnInstall}}}}, defaults: {{toolkit: {toolkit}}}}}");
        let mut sim = Sim::new().gpu_node("a", "2330", 8).policy("all", &spec);
        sim.node_mut("a").runtime = runtime.into();
        sim.settle();
        let pod = test_pod(&sim).spec.expect("a spec");
        assert_eq!(pod.runtime_class_name.as_deref(), class, "{runtime}, {toolkit}");
    }
}
