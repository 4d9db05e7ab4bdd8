//! Tests of the checks.

mod cluster;
mod faults;
mod rules;
mod screens;

use clap::Parser;
use k8s_openapi::jiff::Timestamp;
use serde_json::json;
use strum::IntoEnumIterator;

use crate::{
    check::{
        RunChecks,
        code::{Check, Severity, Stage},
        facts::{Facts, Judgement},
        gather::gather,
        report::{CheckResult, judge, report},
    },
    context::{Context, Outcome},
    output::Screen,
    testing::FakeApi,
};

/// A command line.
#[derive(Debug, Parser)]
struct Checks {
    #[command(flatten)]
    checks: RunChecks,
}

fn context() -> Context {
    let (client, namespace) = (FakeApi::default().client(), "default".to_owned());
    Context { client, namespace, screen: Screen::default(), now: Timestamp::UNIX_EPOCH }
}

async fn healthy(before: bool) -> Facts {
    cluster::facts(&cluster::healthy(), before).await
}

#[tokio::test]
async fn each_check_passes_in_a_healthy_cluster() {
    for check in Check::iter() {
        let facts = healthy(check.stage() == Stage::Before).await;
        let result = judge(check, &facts);
        assert!(matches!(result, Ok(Judgement::Good(_))), "{}: {result:?}", check.code());
    }
}

#[tokio::test]
async fn each_check_fails_with_its_fault_and_names_a_remedy() {
    for check in Check::iter() {
        let before = check.stage() == Stage::Before;
        let mut facts = healthy(before).await;
        faults::cause(check, &mut facts);
        let report = report(&facts, before, &[check.category()]);
        let found = report.categories.iter().flat_map(|category| &category.checks).find(|found| found.code == check);
        let found = found.expect("a check");
        let expected = match check.severity() {
            Severity::Error => CheckResult::Failed,
            Severity::Warning => CheckResult::Warning,
        };
        assert_eq!(found.result, expected, "{}: {}", check.code(), found.finding);
        assert!(found.fix.as_ref().is_some_and(|fix| !fix.is_empty()), "{}", check.code());
        assert!(!found.finding.is_empty(), "{}", check.code());
    }
}

/// Returns the codes of the checks that are skipped if a resource may not be read, with what they name.
async fn skipped_without(plural: &str, before: bool) -> Vec<(&'static str, String)> {
    let api = cluster::healthy();
    api.forbid(plural);
    let facts = cluster::facts(&api, before).await;
    let report = report(&facts, before, &[]);
    let checks = report.categories.into_iter().flat_map(|category| category.checks);
    let skipped = checks.filter(|check| check.result == CheckResult::Skipped);
    skipped.map(|check| (check.code.code(), check.finding)).collect()
}

#[tokio::test]
async fn a_missing_right_skips_only_the_checks_that_need_it() {
    for (plural, codes, before) in [
        ("resourcequotas", "ComputeQuota PodQuota", false),
        ("limitranges", "ComputeQuota DefaultLimits", false),
        ("validatingwebhookconfigurations", "BlockingWebhooks", false),
        ("mutatingwebhookconfigurations", "BlockingWebhooks", false),
        (
            "namespaces",
            "PodSecurity ComputeQuota PodQuota DefaultLimits BlockingWebhooks PodsAdmitted ImagesPulled",
            false,
        ),
        ("customresourcedefinitions", "CrdsInstalled CrdSchema", false),
        ("customresourcedefinitions", "LeftoverCrds", true),
        ("selfsubjectaccessreviews", "InstallRights", true),
        ("deployments", "SingleInstallation OperatorAvailable OperatorVersion ProbeVersion AdmissionPolicies", false),
        ("validatingadmissionpolicies", "AdmissionPolicyApi AdmissionPolicies", false),
        ("validatingadmissionpolicybindings", "AdmissionPolicies", false),
        ("events", "PodsAdmitted", false),
        ("pods", "ImagesPulled", false),
        ("runtimeclasses", "RuntimeClasses", false),
        ("gpunodes", "DriverImage ProbeVersion ProbesReport NodesWithoutPolicy NodesProgress GpusHealthy", false),
        (
            "clustergpupolicies",
            "NodesWithoutPolicy PoliciesAccepted PoliciesProgress PolicyOverlap RuntimeClasses",
            false,
        ),
        (
            "daemonsets",
            "NvidiaOperator GkeAddOn DraDriver ThirdPartyStack DetectorReady ProbeReady PodsAdmitted",
            false,
        ),
        (
            "nodes",
            "KubeletSkew ContainerRuntime RuntimeCdi DriverImage GkeAddOn DraDriver ThirdPartyStack ProbeReady NodesReady ProbesReport \
             NodesWithoutPolicy",
            false,
        ),
    ] {
        let skipped = skipped_without(plural, before).await;
        let found: Vec<&str> = skipped.iter().map(|(code, _)| *code).collect();
        assert_eq!(found.join(" "), codes, "{plural}");
        for (code, finding) in skipped {
            assert!(finding.starts_with("the right to ") && finding.ends_with(" is missing"), "{code}: {finding}");
        }
    }
}

#[tokio::test]
async fn an_api_server_that_is_down_is_an_error() {
    let api = FakeApi::default();
    api.stop();
    let error = gather(&api.client(), cluster::NAMESPACE, false, cluster::catalogue()).await.expect_err("an error");
    assert!(error.to_string().starts_with("the API server does not answer"), "{error}");
}

#[tokio::test]
async fn the_checks_change_nothing_and_read_few_lists() {
    let api = cluster::healthy();
    let node = api.get("/api/v1/nodes/a");
    cluster::facts(&api, false).await;
    assert!(api.requests().iter().all(|request| request.starts_with("GET ")), "{:?}", api.requests());
    assert!(api.requests().len() <= 25, "{}", api.requests().len());
    assert_eq!(api.get("/api/v1/nodes/a"), node);
    let of_pods = api.requests().into_iter().filter(|request| request.contains("/pods"));
    for request in of_pods {
        assert!(request.contains("/namespaces/gpu-operator/pods?") && request.contains("Pending"), "{request}");
    }
}

#[tokio::test]
async fn the_outcome_is_bad_if_a_check_fails() {
    let run = |arguments: &'static [&'static str], api: FakeApi| async move {
        let context = Context { client: api.client(), ..context() };
        Checks::parse_from(arguments).checks.report(&context).await.map(|report| report.outcome())
    };
    let fails = cluster::healthy();
    let labels = json!({"pod-security.kubernetes.io/enforce": "restricted"});
    fails.add_json("/api/v1/namespaces/gpu-operator", json!({"metadata": {"name": "gpu-operator", "labels": labels}}));
    let arguments = &["check", "--category", "namespace", "--category", "nodes", "--output", "json"];
    assert_eq!(run(arguments, cluster::healthy()).await.expect("an outcome"), Outcome::Good);
    assert_eq!(run(arguments, fails).await.expect("an outcome"), Outcome::Bad);
    let error = run(&["check", "--pre", "--category", "fleet"], cluster::healthy()).await.expect_err("an error");
    assert!(error.to_string().starts_with("no check of these categories"), "{error}");
}

#[test]
fn titles_are_short_and_explanations_are_sentences() {
    for check in Check::iter() {
        assert!(check.title().chars().count() <= 40, "{}", check.title());
        let text = check.explanation();
        for sentence in [text.looks_at, text.matters, text.remedy] {
            assert!(sentence.ends_with('.') && !sentence.contains("  "), "{}: {sentence}", check.code());
        }
    }
}
