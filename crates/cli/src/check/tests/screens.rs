//! What users see.

use serde_json::json;

use super::{cluster, faults};
use crate::{
    check::{
        code::{Category, Check},
        report::{report, text},
    },
    output::Screen,
    testing::{FakeApi, SCREEN, assert_narrow},
};

const RESOURCES: [&str; 16] = [
    "namespaces",
    "nodes",
    "validatingwebhookconfigurations",
    "mutatingwebhookconfigurations",
    "customresourcedefinitions",
    "deployments",
    "daemonsets",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "pods",
    "events",
    "clustergpupolicies",
    "gpunodes",
    "runtimeclasses",
    "selfsubjectaccessreviews",
    "version",
];

async fn screen(api: &FakeApi, before: bool, faults: &[Check]) -> String {
    let mut facts = cluster::facts(api, before).await;
    for fault in faults {
        faults::cause(*fault, &mut facts);
    }
    let text = text(&report(&facts, before, &[]), SCREEN);
    assert_narrow(&text);
    text.replace(env!("CARGO_PKG_VERSION"), "VERSION")
}

#[tokio::test]
async fn a_healthy_cluster() {
    insta::assert_snapshot!(screen(&cluster::healthy(), false, &[]).await);
}

#[tokio::test]
async fn several_faults() {
    let faults = [
        Check::RuntimeCdi,
        Check::PodSecurity,
        Check::BlockingWebhooks,
        Check::NvidiaOperator,
        Check::OperatorAvailable,
        Check::DetectorReady,
        Check::PodsAdmitted,
        Check::ImagesPulled,
        Check::PoliciesProgress,
        Check::NodesProgress,
        Check::GpusHealthy,
    ];
    insta::assert_snapshot!(screen(&cluster::healthy(), false, &faults).await);
}

#[tokio::test]
async fn before_the_installation_in_an_empty_cluster() {
    insta::assert_snapshot!(screen(&cluster::empty(), true, &[]).await);
}

#[tokio::test]
async fn before_the_installation_with_faults() {
    let api = cluster::empty();
    cluster::review(&api, false);
    let labels = json!({"kubernetes.io/os": "linux", "cloud.google.com/gke-accelerator": "nvidia-tesla-t4"});
    let mut node = cluster::node("gpu-1", &labels);
    node["status"]["nodeInfo"]["osImage"] = "Debian GNU/Linux 12 (bookworm)".into();
    node["spec"] = json!({"taints": [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]});
    api.add_json("/api/v1/nodes/gpu-1", node);
    insta::assert_snapshot!(screen(&api, true, &[Check::KubernetesVersion, Check::PodQuota]).await);
}

#[tokio::test]
async fn without_any_right() {
    let api = cluster::healthy();
    for plural in RESOURCES {
        api.forbid(plural);
    }
    insta::assert_snapshot!(screen(&api, false, &[]).await);
}

#[tokio::test]
async fn json_has_codes_results_and_pages() {
    let mut facts = cluster::facts(&cluster::healthy(), false).await;
    faults::cause(Check::PodSecurity, &mut facts);
    let report = report(&facts, false, &[Category::Namespace]);
    assert!(!report.success);
    insta::assert_snapshot!(serde_json::to_string_pretty(&report).expect("JSON"));
}

#[tokio::test]
async fn a_command_is_broken_so_that_a_shell_reads_it() {
    let mut facts = cluster::facts(&cluster::healthy(), false).await;
    faults::cause(Check::PodSecurity, &mut facts);
    let text = text(&report(&facts, false, &[Category::Namespace]), Screen::default());
    let expected = "    Fix: kubectl label namespace gpu-operator --overwrite \\\n      pod-security.kubernetes.io/enforce=privileged\n";
    assert!(text.contains(expected), "{text}");
}
