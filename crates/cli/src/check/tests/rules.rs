//! What checks find, and what they do not find, in particular cases.

use gpu_operator_crd::schema_revision::{ANNOTATION, SCHEMA_REVISION};
use serde_json::{Value, json};

use super::{
    cluster::{self, node},
    faults, healthy,
};
use crate::check::{
    code::Check,
    facts::{Facts, Host, Judgement, Webhook},
    report::judge,
};

fn of<T: serde::de::DeserializeOwned>(object: Value) -> T {
    serde_json::from_value(object).expect("an object")
}

fn passes(check: Check, facts: &Facts) -> bool {
    matches!(judge(check, facts), Ok(Judgement::Good(_)))
}

#[tokio::test]
async fn a_webhook_counts_if_it_can_block_the_probes_pods() {
    let pods = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let not_here = json!({"matchExpressions": [
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["gpu-operator"]},
    ]});
    let opt_in = json!({"matchLabels": {"istio-injection": "enabled"}});
    let any = json!({});
    for (rule, namespaces, objects, fails_closed, has_conditions, blocks) in [
        (&pods, &any, &any, true, false, true),
        (
            &json!({"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*/*"]}),
            &any,
            &any,
            true,
            false,
            true,
        ),
        (&pods, &any, &any, false, false, false),
        (&pods, &any, &any, true, true, false),
        (&pods, &not_here, &any, true, false, false),
        (&pods, &opt_in, &any, true, false, false),
        (&pods, &any, &json!({"matchLabels": {"app": "other"}}), true, false, false),
        (&pods, &any, &json!({"matchLabels": {"app.kubernetes.io/name": "nvml-probe"}}), true, false, true),
        (
            &json!({"operations": ["UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}),
            &any,
            &any,
            true,
            false,
            false,
        ),
        (
            &json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"]}),
            &any,
            &any,
            true,
            false,
            false,
        ),
    ] {
        let mut facts = healthy(false).await;
        let (name, rules) = ("x".to_owned(), vec![of(rule.clone())]);
        let (namespaces, objects) = (of(namespaces.clone()), of(objects.clone()));
        facts.webhooks = Ok(vec![Webhook { name, fails_closed, has_conditions, rules, namespaces, objects }]);
        assert_eq!(!passes(Check::BlockingWebhooks, &facts), blocks, "{:?}", facts.webhooks);
    }
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
        let mut facts = healthy(false).await;
        facts.quotas = Ok(vec![of(json!({"metadata": {"name": "q"}, "spec": {"hard": hard, "scopes": scopes}}))]);
        facts.limits = Ok(defaults.iter().map(|defaults| of(container(defaults.clone()))).collect());
        assert_eq!(passes(Check::ComputeQuota, &facts), is_good, "{hard} {scopes} {defaults:?}");
    }
}

#[tokio::test]
async fn an_event_of_a_daemon_set_with_all_pods_is_out_of_date() {
    let mut facts = healthy(false).await;
    facts.rejections = Ok(vec![faults::rejection("nodestack-nvml-probe")]);
    assert!(passes(Check::PodsAdmitted, &facts));
}

#[tokio::test]
async fn container_runtimes_differ_in_cdi() {
    for (version, known, finding) in [
        ("containerd://2.1.4", true, "on 2 nodes"),
        ("cri-o://1.34.1", true, "on 2 nodes"),
        ("containerd://1.7.27", true, "after a restart of containerd on 1 node"),
        ("containerd://1.6.36", true, "no CDI on a (containerd 1.6.36)"),
        ("docker://27.0.3", true, "no CDI on a (docker 27.0.3)"),
        ("containerd://Unknown", true, "on 1 node"),
        ("rkt://1", false, "on 1 node"),
    ] {
        let mut facts = healthy(false).await;
        let nodes = facts.nodes.as_mut().expect("nodes");
        nodes.iter_mut().find(|host| host.name() == "a").expect("a node").facts.runtime = version.into();
        assert_eq!(passes(Check::ContainerRuntime, &facts), known, "{version}");
        let found = match judge(Check::RuntimeCdi, &facts) {
            Ok(Judgement::Good(finding) | Judgement::Bad { finding, .. }) => finding,
            other => panic!("{version}: {other:?}"),
        };
        assert!(found.starts_with(finding), "{version}: {found}");
    }
}

#[tokio::test]
async fn before_any_gpu_is_known_all_workers_are_judged() {
    let api = cluster::empty();
    let labels = json!({"kubernetes.io/os": "linux"});
    api.add_json("/api/v1/nodes/worker", node("worker", &labels));
    let facts = cluster::facts(&api, true).await;
    assert_eq!(facts.gpu_hosts().expect("nodes").len(), 0);
    let names: Vec<&str> = facts.possible_gpu_hosts().expect("nodes").into_iter().map(Host::name).collect();
    assert_eq!(names, ["worker"]);
}

#[tokio::test]
async fn kubelets_may_be_three_minor_versions_older() {
    for (kubelet, is_good) in [("v1.36.0", true), ("v1.33.9", true), ("v1.32.9", false), ("v1.37.0", false), ("", true)]
    {
        let mut facts = healthy(false).await;
        facts.nodes.as_mut().expect("nodes")[0].facts.kubelet = kubelet.into();
        assert_eq!(passes(Check::KubeletSkew, &facts), is_good, "{kubelet}");
    }
}

#[tokio::test]
async fn a_governed_node_is_judged_by_its_reason_not_by_its_system() {
    let mut facts = healthy(false).await;
    for host in facts.nodes.as_mut().expect("nodes") {
        host.os_image = "Debian GNU/Linux 12 (bookworm)".to_owned();
    }
    assert!(passes(Check::DriverImage, &facts), "{:?}", judge(Check::DriverImage, &facts));
    let gpu_node = &mut facts.gpu_nodes.as_mut().expect("GpuNodes").items[0];
    let status = gpu_node.status.as_mut().expect("a status");
    status.reason = Some(gpu_operator_crd::Open::Known(gpu_operator_crd::Reason::NoDriverImageForOS));
    assert!(!passes(Check::DriverImage, &facts));
}

#[tokio::test]
async fn third_party_sets_that_reach_no_node_are_ignored() {
    let mut facts = healthy(false).await;
    faults::cause(Check::ThirdPartyStack, &mut facts);
    let sets = facts.daemon_sets.as_mut().expect("DaemonSets");
    let pod = sets.last_mut().and_then(|set| set.spec.as_mut()?.template.spec.as_mut()).expect("a pod");
    pod.node_selector = Some([("pool".to_owned(), "none".to_owned())].into());
    assert!(passes(Check::ThirdPartyStack, &facts));
}

#[tokio::test]
async fn a_daemon_set_needs_no_pods_on_nodes_that_are_down() {
    for (down, ready, is_good) in [(0, 2, true), (0, 1, false), (1, 1, true), (1, 0, false)] {
        let mut facts = healthy(false).await;
        let nodes = facts.nodes.as_mut().expect("nodes").iter_mut().filter(|host| host.facts.is_labelled_present());
        nodes.take(down).for_each(|host| host.facts.ready = false);
        for set in facts.daemon_sets.as_mut().expect("DaemonSets") {
            let status = set.status.as_mut().expect("a status");
            // The detector also runs on the node of the control plane.
            status.number_ready = status.desired_number_scheduled - 2 + ready;
        }
        for check in [Check::DetectorReady, Check::ProbeReady] {
            assert_eq!(passes(check, &facts), is_good, "{down} {ready}: {:?}", judge(check, &facts));
        }
    }
}

#[tokio::test]
async fn a_crd_of_another_version_is_found_by_its_revision() {
    for (revision, words) in [
        (Some(SCHEMA_REVISION), None),
        (None, Some("update the CRDs with helm upgrade")),
        (Some(SCHEMA_REVISION + 1), Some("upgrade the operator to the version of the CRDs")),
    ] {
        let mut facts = healthy(false).await;
        let annotations = revision.map(|revision| (ANNOTATION.to_owned(), revision.to_string()));
        facts.crds.as_mut().expect("CRDs")[1].metadata.annotations = Some(annotations.into_iter().collect());
        let judged = judge(Check::CrdSchema, &facts).expect("facts");
        let fix = if let Judgement::Bad { fix, .. } = judged { Some(fix) } else { None };
        assert_eq!(fix.is_some(), words.is_some(), "{revision:?}");
        assert!(words.is_none_or(|words| fix.is_some_and(|fix| fix.contains(words))), "{revision:?}");
    }
}
