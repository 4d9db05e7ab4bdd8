//! What is read on request: the pods that use a GPU, and the logs of validation pods.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, stream};
use gpu_operator::observe;
use gpu_operator_crd::{NodeName, keys};
use gpu_operator_plan::world::{Bystander, GpuPods, GpuRequests};
use http::StatusCode;
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made};
use tokio::time::Instant;

#[tokio::test]
async fn only_pods_that_use_a_gpu_and_have_not_ended_are_returned() {
    let api = Api::new();
    let pod = |name: &str, node: &str, limits: Value, phase: &str| {
        let state = if phase == "Running" { json!({"running": {}}) } else { json!({"waiting": {}}) };
        let status = json!({"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state});
        api.write("kubelet", &format!("/api/v1/namespaces/team/pods/{name}"), |pod| {
            *pod = json!({
                "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
                "status": {"phase": phase, "containerStatuses": [status]},
            });
        });
    };
    pod("gpu", "a", json!({"nvidia.com/gpu": "2"}), "Running");
    pod("slice", "a", json!({"nvidia.com/mig-1g.5gb": "1"}), "Pending");
    pod("none", "a", json!({"cpu": "1"}), "Running");
    pod("zero", "a", json!({"nvidia.com/gpu": "0"}), "Running");
    pod("third-party", "a", json!({"example.com/gpu": "1"}), "Running");
    pod("other", "a", json!({"example.com/fpga": "1"}), "Running");
    pod("ended", "a", json!({"nvidia.com/gpu": "1"}), "Succeeded");
    pod("elsewhere", "b", json!({"nvidia.com/gpu": "1"}), "Running");
    pod("claim", "a", json!({}), "Running");
    api.write("user", "/api/v1/namespaces/team/pods/claim", |pod| {
        pod["spec"]["resourceClaims"] = json!([{"name": "g"}]);
    });
    for namespace in ["gpu-operator", "team"] {
        api.write("kubelet", &format!("/api/v1/namespaces/{namespace}/pods/device-plugin"), |pod| {
            *pod = json!({
                "metadata": {"labels": {keys::STAGE: "device-plugin"}},
                "spec": {"nodeName": "a", "containers": [{"name": "c"}]},
            });
        });
    }
    // Of these, the DaemonSet controller removes only the first from a node with the label.
    for (name, kind) in [("exporter-1", "DaemonSet"), ("exporter-2", "ReplicaSet")] {
        let expression = json!({"key": keys::CLIENTS, "operator": "NotIn", "values": [keys::CLIENTS_PAUSED]});
        let required = json!({"nodeSelectorTerms": [{"matchExpressions": [expression]}]});
        api.write("kubelet", &format!("/api/v1/namespaces/monitoring/pods/{name}"), |pod| {
            let owner =
                json!({"apiVersion": "apps/v1", "kind": kind, "name": "exporter", "uid": "u", "controller": true});
            *pod = json!({
                "metadata": {"ownerReferences": [owner]},
                "spec": {
                    "nodeName": "a",
                    "containers": [{"name": "c"}],
                    "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
                },
            });
        });
    }
    let node = NodeName::from("a");
    for (asks, expected) in [
        (GpuRequests::default(), &["team/gpu", "team/slice"][..]),
        (
            GpuRequests { resources: ["example.com/gpu".to_owned()].into(), claims: true },
            &["team/claim", "team/gpu", "team/slice", "team/third-party"],
        ),
    ] {
        let found = observe::gpu_pods(&api.client(), "gpu-operator", &[node.clone()].into(), &asks).await;
        let GpuPods { users, plugins, bystanders } = &found[&node];
        assert_eq!(users.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(), expected);
        let holders: Vec<_> = found[&node].holders().map(|pod| pod.name.as_str()).collect();
        assert!(holders.contains(&"team/gpu") && !holders.contains(&"team/slice"), "{holders:?}");
        let plugins: Vec<_> = plugins.iter().map(|pod| pod.name.as_str()).collect();
        assert_eq!(plugins, ["device-plugin"]);
        let named =
            |name: &str| bystanders.values().filter(|pod| format!("{pod:?}").contains(name)).collect::<Vec<_>>();
        assert_eq!(named("team/none"), [&Bystander::Stays("team/none".into())]);
        assert_eq!(named("exporter-1"), [&Bystander::GivesWay("monitoring/exporter-1".into())]);
        assert_eq!(named("exporter-2"), [&Bystander::Stays("monitoring/exporter-2".into())]);
        assert_eq!(named("Own"), [&Bystander::Own], "the device plugin in the operator's namespace");
    }
    assert_eq!(api.take().len(), 2);
}

#[tokio::test]
async fn the_pods_of_a_node_are_listed_page_by_page() {
    let api = Api::new();
    let pod = |name: &str, labels: usize| {
        let labels: serde_json::Map<_, _> = (0..labels).map(|label| (format!("l{label}"), json!(""))).collect();
        api.write("kubelet", &format!("/api/v1/namespaces/team/pods/{name}"), |pod| {
            let limits = json!({"nvidia.com/gpu": "1"});
            *pod = json!({
                "metadata": {"labels": labels},
                "spec": {"nodeName": "a", "containers": [{"name": "c", "resources": {"limits": limits}}]},
            });
        });
    };
    (0..1001).for_each(|number| pod(&format!("p{number:04}"), 200));
    let nodes = [NodeName::from("a")].into();
    let found = observe::gpu_pods(&api.client(), "gpu-operator", &nodes, &GpuRequests::default()).await;
    let users = &found[&NodeName::from("a")].users;
    assert_eq!((users.len(), users[1000].name.as_str(), users[0].labels.len()), (1001, "team/p1000", 128));
    assert_eq!(api.take().len(), 3);
    pod("p0500", 20_000);
    let found = observe::gpu_pods(&api.client(), "gpu-operator", &nodes, &GpuRequests::default()).await;
    assert!(found.is_empty(), "the GPUs of a pod that is not parsed completely are unknown");
}

#[tokio::test(start_paused = true)]
async fn the_end_of_a_log_is_read_and_a_silent_node_does_not_block() {
    let api = Api::new();
    let endless = Arc::new(|_: &Made| stream::repeat("more\n".to_owned()).boxed());
    for (pod, fault) in [
        ("silent", Fault::Hangs),
        ("gone", Fault::Refused(StatusCode::NOT_FOUND)),
        ("rotated", Fault::text("unable to retrieve container logs for containerd://7")),
        ("passed", Fault::text("Test PASSED\nDone\n")),
        ("endless", Fault::Answered(endless)),
    ] {
        api.fail(move |made| made.names(pod), fault);
    }
    let client = api.client();
    let pods = ["endless", "gone", "passed", "rotated", "silent"].map(str::to_owned).into();
    let began = Instant::now();
    let words = observe::log_tails(&client, "gpu-operator", &pods).await;
    assert_eq!(words["passed"], Ok("Test PASSED\nDone\n".to_owned()));
    assert!(words["gone"].as_ref().is_err_and(|why| why.contains("NotFound")), "{words:?}");
    assert!(words["rotated"].is_err(), "kubelet answers successfully, but not with a log: {words:?}");
    assert_eq!(words["endless"].as_ref().map(String::len), Ok(4096), "kubelet does not apply the limit");
    assert_eq!(words["silent"], Err("no answer within 2 s".to_owned()));
    assert!(began.elapsed() < Duration::from_secs(3));
    let made = api.take();
    let passed = made.iter().find(|made| made.url() == "/api/v1/namespaces/gpu-operator/pods/passed/log");
    let query = |made: &Made| ["container", "limitBytes", "tailLines"].map(|name| made.query[name].clone());
    assert_eq!(passed.map(query).expect("a request"), ["test", "4096", "20"]);
}
