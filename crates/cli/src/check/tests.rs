//! Tests of the checks.

mod cluster;

use clap::Parser;
use gpu_operator_crd::schema_revision::{ANNOTATION, SCHEMA_REVISION};
use http::{Method, StatusCode};
use k8s_openapi::{api::apps::v1::DaemonSetStatus, jiff::Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made};

use crate::{
    check::{
        RunChecks,
        facts::Facts,
        gather::gather,
        list::{CHECKS, Severity, Stage},
        report::{CheckResult, Checked, report, text},
    },
    context::{Context, Outcome},
    output::Screen,
    read::ReadError,
    testing::{SCREEN, assert_narrow},
};

/// A command line.
#[derive(Debug, Parser)]
struct Checks {
    #[command(flatten)]
    checks: RunChecks,
}

fn of<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

fn list<T>(read: &mut Result<T, ReadError>) -> &mut T {
    read.as_mut().expect("facts")
}

fn set<'f>(facts: &'f mut Facts, name: &str) -> &'f mut DaemonSetStatus {
    let sets = list(&mut facts.daemon_sets).iter_mut();
    sets.filter(|set| set.name_any() == name).find_map(|set| set.status.as_mut()).expect("a status")
}

/// Changes facts so that a check does not pass.
fn cause(code: &str, facts: &mut Facts) {
    let volumes = |path: &str| json!([{"name": "v", "hostPath": {"path": path}}]);
    match code {
        "KubernetesVersion" => facts.kubernetes = Ok("v1.31.9".to_owned()),
        "InstallRights" => list(&mut facts.rights)[3].is_allowed = false,
        "AdmissionPolicyApi" => {
            facts.admission = Err(ReadError::NotInstalled("validatingadmissionpolicies".to_owned()));
        }
        "ThirdPartyStack" => {
            let container = json!({"name": "c", "image": "mirror/plugin:1"});
            let sets = list(&mut facts.daemon_sets);
            for (name, pod) in [
                (
                    "nvidia-driver-daemonset",
                    json!({"containers": [], "nodeSelector": {"nvidia.com/gpu.deploy.driver": "true"}}),
                ),
                (
                    "nvidia-gpu-device-plugin",
                    json!({"containers": [container], "volumes": volumes("/var/lib/kubelet/device-plugins")}),
                ),
                (
                    "nvidia-device-plugin-ds",
                    json!({"containers": [container], "volumes": volumes("/var/lib/kubelet/device-plugins")}),
                ),
                (
                    "nvidia-dra-driver-gpu-kubelet-plugin",
                    json!({"containers": [{"name": "gpus"}], "volumes": volumes("/var/lib/kubelet/plugins_registry")}),
                ),
            ] {
                sets.push(of(json!({
                    "metadata": {"name": name, "namespace": "kube-system"}, "spec": {"selector": {}, "template": {"spec": pod}},
                })));
            }
        }
        "PodSecurity" => {
            facts.labels = Ok(Some([("pod-security.kubernetes.io/enforce".to_owned(), "baseline".to_owned())].into()));
        }
        "ResourceQuota" => {
            let status = json!({"hard": {"pods": "10"}, "used": {"pods": "10"}});
            for quota in [
                json!({"metadata": {"name": "pods"}, "spec": {}, "status": status}),
                json!({"metadata": {"name": "team"}, "spec": {"hard": {"limits.memory": "1Ti"}}}),
            ] {
                list(&mut facts.quotas).push(of(quota));
            }
        }
        "SingleInstallation" => {
            list(&mut facts.operators).extend([of(cluster::operator("other")), of(cluster::operator("third"))]);
        }
        "Crds" => {
            for crd in list(&mut facts.crds) {
                crd.annotations_mut().insert(ANNOTATION.to_owned(), (SCHEMA_REVISION + 1).to_string());
            }
        }
        "OperatorReady" => list(&mut facts.operators)[0].status = None,
        "OperatorVersion" => {
            let version = "app.kubernetes.io/version".to_owned();
            list(&mut facts.operators)[0].labels_mut().insert(version, "9.9.9".to_owned());
        }
        "DaemonSets" => {
            set(facts, "nodestack-gpu-detector").number_ready -= 1;
            set(facts, "nodestack-nvml-probe").desired_number_scheduled -= 1;
        }
        "AdmissionPolicies" => drop(list(&mut facts.bindings).pop()),
        other => panic!("no fault of {other}"),
    }
}

async fn facts(before: bool) -> Facts {
    cluster::facts(&cluster::healthy(), before).await
}

fn checked(code: &str, facts: &Facts) -> Checked {
    report(facts).checks.into_iter().find(|check| check.code == code).expect("a check")
}

fn passes(code: &str, facts: &Facts) -> bool {
    checked(code, facts).result == CheckResult::Passed
}

#[tokio::test]
async fn each_check_passes_without_its_fault_and_fails_with_it() {
    for check in CHECKS {
        let mut facts = facts(check.stage == Stage::Before).await;
        assert_eq!(checked(check.code, &facts).result, CheckResult::Passed, "{}", check.code);
        cause(check.code, &mut facts);
        let found = checked(check.code, &facts);
        let expected = match check.severity {
            Severity::Error => CheckResult::Failed,
            Severity::Warning => CheckResult::Warning,
        };
        assert_eq!(found.result, expected, "{}: {}", check.code, found.finding);
        assert!(found.fix.is_some_and(|fix| !fix.is_empty()) && !found.finding.is_empty(), "{}", check.code);
        let failed = report(&facts).checks.into_iter().filter(|check| check.result != CheckResult::Passed);
        assert_eq!(failed.map(|check| check.code).collect::<Vec<_>>(), [check.code]);
    }
}

#[tokio::test]
async fn a_missing_right_skips_only_the_checks_that_need_it() {
    for (plural, before, codes) in [
        ("version", true, "KubernetesVersion"),
        ("resourcequotas", true, "ResourceQuota"),
        ("limitranges", true, "ResourceQuota"),
        ("namespaces", true, "PodSecurity ResourceQuota"),
        ("selfsubjectaccessreviews", true, "InstallRights"),
        ("customresourcedefinitions", true, "Crds"),
        ("customresourcedefinitions", false, "Crds"),
        ("daemonsets", true, "ThirdPartyStack"),
        ("daemonsets", false, "DaemonSets"),
        ("nodes", true, "ThirdPartyStack"),
        ("nodes", false, "DaemonSets"),
        ("deployments", true, "SingleInstallation"),
        ("deployments", false, "SingleInstallation OperatorReady OperatorVersion AdmissionPolicies"),
        ("leases", false, "OperatorReady"),
        ("pods", false, "OperatorReady"),
        ("validatingadmissionpolicies", true, "AdmissionPolicyApi"),
        ("validatingadmissionpolicies", false, "AdmissionPolicies"),
        ("validatingadmissionpolicybindings", false, "AdmissionPolicies"),
    ] {
        let api = cluster::healthy();
        api.forbid(plural);
        let report = report(&cluster::facts(&api, before).await);
        let skipped: Vec<_> = report.checks.iter().filter(|check| check.result == CheckResult::Skipped).collect();
        let found: Vec<_> = skipped.iter().map(|check| check.code).collect();
        assert_eq!(found.join(" "), codes, "{plural}");
        for Checked { finding, .. } in skipped {
            assert!(finding.starts_with("the right to ") && finding.ends_with(" is missing"), "{plural}: {finding}");
        }
    }
}

#[tokio::test]
async fn an_api_server_that_is_down_is_an_error() {
    let api = Api::new();
    api.fail(|_| true, Fault::Refused(StatusCode::SERVICE_UNAVAILABLE));
    let error = gather(&api.client(), cluster::NAMESPACE, false).await.expect_err("an error");
    assert!(error.to_string().starts_with("the API server does not answer"), "{error}");
}

#[tokio::test]
async fn the_checks_change_nothing_and_read_few_lists() {
    for before in [true, false] {
        let api = cluster::healthy();
        cluster::facts(&api, before).await;
        let review = |made: &Made| made.method == Method::POST && made.path.ends_with("/selfsubjectaccessreviews");
        let others: Vec<_> = api.take().into_iter().filter(|made| !review(made)).collect();
        assert!(others.iter().all(|made| made.method == Method::GET), "{others:?}");
        assert!(others.len() <= 10, "{others:?}");
    }
}

#[tokio::test]
async fn the_outcome_is_bad_if_a_check_fails() {
    let run = |arguments: &'static [&'static str], api: Api| async move {
        let (client, namespace, screen) = (api.client(), "default".to_owned(), Screen::default());
        let context = Context { client, namespace, screen, now: Timestamp::UNIX_EPOCH };
        Checks::parse_from(arguments).checks.report(&context).await.map(|report| report.outcome()).expect("a report")
    };
    assert_eq!(run(&["check"], cluster::healthy()).await, Outcome::Good);
    assert_eq!(run(&["check", "--pre"], cluster::empty()).await, Outcome::Good);
    assert_eq!(run(&["check"], cluster::empty()).await, Outcome::Bad);
}

/// Returns the screen with the faults of all checks, or of none.
async fn screen(api: &Api, before: bool, has_faults: bool) -> String {
    let mut facts = cluster::facts(api, before).await;
    for check in CHECKS.iter().filter(|check| has_faults && check.applies(before)) {
        cause(check.code, &mut facts);
    }
    let text = text(&report(&facts), SCREEN);
    assert_narrow(&text);
    text.replace(env!("CARGO_PKG_VERSION"), "VERSION")
}

#[tokio::test]
async fn a_healthy_cluster() {
    insta::assert_snapshot!(screen(&cluster::healthy(), false, false).await);
}

#[tokio::test]
async fn a_cluster_with_all_faults() {
    insta::assert_snapshot!(screen(&cluster::healthy(), false, true).await);
}

#[tokio::test]
async fn before_the_installation_in_an_empty_cluster() {
    insta::assert_snapshot!(screen(&cluster::empty(), true, false).await);
}

#[tokio::test]
async fn before_the_installation_with_all_faults() {
    insta::assert_snapshot!(screen(&cluster::healthy(), true, true).await);
}

#[tokio::test]
async fn json_has_codes_results_and_fixes() {
    let mut facts = facts(false).await;
    cause("OperatorVersion", &mut facts);
    let report = serde_json::to_value(report(&facts)).expect("JSON");
    assert_eq!((&report["success"], report["checks"].as_array().map(Vec::len)), (&json!(true), Some(6)));
    let found = json!({
        "code": "OperatorVersion",
        "result": "Warning",
        "finding": format!("the operator has version 9.9.9, and this program {}", env!("CARGO_PKG_VERSION")),
        "fix": "use version 9.9.9 of this program",
    });
    assert!(report["checks"].as_array().is_some_and(|checks| checks.contains(&found)), "{report:#}");
}

#[tokio::test]
async fn a_compute_quota_passes_with_a_scope_or_with_defaults() {
    let container = |limits: Value| json!({"metadata": {"name": "l"}, "spec": {"limits": [limits]}});
    let (memory, requests) = (json!({"limits.memory": "1Ti"}), json!({"requests.cpu": "100"}));
    for (hard, scopes, defaults, is_good) in [
        (&memory, json!([]), None, false),
        (&memory, json!(["BestEffort"]), None, true),
        (&json!({"count/configmaps": "9"}), json!([]), None, true),
        (&memory, json!([]), Some(json!({"type": "Container", "default": {"memory": "8Gi"}})), true),
        (&memory, json!([]), Some(json!({"type": "Container", "defaultRequest": {"memory": "8Gi"}})), false),
        (&requests, json!([]), Some(json!({"type": "Container", "defaultRequest": {"cpu": "1"}})), true),
        (&requests, json!([]), Some(json!({"type": "Container", "default": {"cpu": "1"}})), true),
        (&requests, json!([]), Some(json!({"type": "Pod", "max": {"cpu": "1"}})), false),
    ] {
        let mut facts = facts(true).await;
        facts.quotas = Ok(vec![of(json!({"metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": scopes}}))]);
        facts.limits = Ok(defaults.iter().map(|defaults| of(container(defaults.clone()))).collect());
        assert_eq!(passes("ResourceQuota", &facts), is_good, "{hard} {scopes} {defaults:?}");
    }
}

#[tokio::test]
async fn third_party_sets_that_reach_no_node_are_ignored() {
    let mut facts = facts(true).await;
    cause("ThirdPartyStack", &mut facts);
    list(&mut facts.daemon_sets).retain(|set| set.name_any() == "nvidia-device-plugin-ds");
    assert!(!passes("ThirdPartyStack", &facts));
    let sets = list(&mut facts.daemon_sets);
    let pod = sets.last_mut().and_then(|set| set.spec.as_mut()?.template.spec.as_mut()).expect("a pod");
    pod.node_selector = Some([("pool".to_owned(), "none".to_owned())].into());
    assert!(passes("ThirdPartyStack", &facts));
}

#[tokio::test]
async fn a_daemon_set_needs_no_pods_on_nodes_that_are_down() {
    for (down, ready, is_good) in [(0, 2, true), (0, 1, false), (1, 1, true), (1, 0, false)] {
        let mut facts = facts(false).await;
        let nodes = list(&mut facts.nodes).iter_mut().filter(|node| node.name.as_str() != "control");
        for node in nodes.take(down) {
            node.ready = false;
        }
        for name in ["nodestack-gpu-detector", "nodestack-nvml-probe"] {
            let status = set(&mut facts, name);
            // The detector also runs on the node of the control plane.
            status.number_ready = status.desired_number_scheduled - 2 + ready;
        }
        assert_eq!(passes("DaemonSets", &facts), is_good, "{down} {ready}: {:?}", checked("DaemonSets", &facts));
    }
}

#[tokio::test]
async fn crds_may_be_missing_or_older_only_before() {
    let newer = Some(SCHEMA_REVISION + 1);
    for (revision, before, words) in [
        (Some(SCHEMA_REVISION), false, None),
        (None, false, Some("update the CRDs with helm upgrade")),
        (newer, false, Some("upgrade the operator to the version of the CRDs")),
        (None, true, None),
        (newer, true, Some("upgrade the operator to the version of the CRDs")),
    ] {
        let mut facts = facts(before).await;
        let annotations = revision.map(|revision| (ANNOTATION.to_owned(), revision.to_string()));
        list(&mut facts.crds)[1].metadata.annotations = Some(annotations.into_iter().collect());
        let fix = checked("Crds", &facts).fix;
        assert_eq!(fix.is_some(), words.is_some(), "{revision:?} {before}");
        assert!(words.is_none_or(|words| fix.is_some_and(|fix| fix.contains(words))), "{revision:?} {before}");
    }
    for before in [true, false] {
        let mut facts = facts(before).await;
        list(&mut facts.crds).pop();
        assert_eq!(passes("Crds", &facts), before);
    }
    let mut facts = facts(true).await;
    list(&mut facts.crds)[0].spec.versions[0].name = "v1".to_owned();
    assert!(!passes("Crds", &facts));
}

#[tokio::test]
async fn a_ready_pod_of_the_operator_must_hold_its_lease() {
    for (holder, finding) in [
        ("operator-2", None),
        ("operator-1", Some("the Lease is held by operator-1, which is no ready pod")),
        ("gone", Some("the Lease is held by gone")),
        ("", Some("no pod of Deployment nodestack-gpu-operator holds its Lease")),
    ] {
        let mut facts = facts(false).await;
        let spec = list(&mut facts.leases)[0].spec.as_mut().expect("a spec");
        spec.holder_identity = Some(holder.to_owned());
        let found = checked("OperatorReady", &facts);
        assert_eq!(found.result == CheckResult::Passed, finding.is_none(), "{holder}: {}", found.finding);
        assert!(finding.is_none_or(|words| found.finding.starts_with(words)), "{}", found.finding);
    }
}

#[test]
fn titles_are_short_and_explanations_are_sentences() {
    for check in CHECKS {
        assert!(check.title.chars().count() <= 40, "{}", check.title);
        for sentence in [check.looks_at, check.matters, check.remedy] {
            assert!(sentence.ends_with('.') && !sentence.contains("  "), "{}: {sentence}", check.code);
        }
    }
}
