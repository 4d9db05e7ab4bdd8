//! What `helm test` finds in an installed chart.

use std::time::Duration;

use gpu_operator::check::{faults, lasting_faults};
use gpu_operator_crd::schema_revision::SCHEMA_REVISION;
use serde_json::json;
use test_api_server::Api;
use tokio::time::{Instant, sleep};

use crate::{
    cluster::{NODES, PODS, SETS},
    schema::{GPU_NODES, set_revision},
};

const DETECTOR: &str = "nodestack-gpu-detector";
const PROBE: &str = "nodestack-nvml-probe";

/// Creates the operator's pod with this state.
fn operator(api: &Api, ready: &str) {
    api.write("kubelet", &format!("{PODS}/operator"), |pod| {
        *pod = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "nodestack-gpu-operator"}},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        });
    });
}

/// Creates a DaemonSet with these pods, or changes them.
fn set(api: &Api, name: &str, ready: i32, wanted: i32) {
    api.write("controller", &format!("{SETS}/{name}"), |set| {
        let generation = set["metadata"]["generation"].as_i64().unwrap_or(1);
        set["status"] = json!({
            "numberReady": ready, "desiredNumberScheduled": wanted,
            "currentNumberScheduled": wanted, "numberMisscheduled": 0, "observedGeneration": generation,
        });
    });
}

/// Creates a node, on which the detector has found a GPU or none.
fn node(api: &Api, name: &str, present: &str) {
    api.write("operator", &format!("{NODES}/{name}"), |node| {
        node["metadata"]["labels"] = json!({"gpu.nodestack.dev/present": present});
    });
}

/// Creates an installation in which everything works, with one GPU node.
fn working(api: &Api) {
    operator(api, "True");
    set(api, DETECTOR, 2, 2);
    set(api, PROBE, 1, 1);
    node(api, "cpu", "false");
    node(api, "gpu", "true");
}

async fn found(api: &Api) -> Vec<String> {
    faults(&api.client(), "gpu-operator").await.expect("an answer")
}

#[tokio::test]
async fn operator_detector_and_all_probes_must_be_ready() {
    let api = Api::new();
    faults(&api.client(), "gpu-operator").await.expect_err("the DaemonSets do not exist");
    working(&api);
    assert_eq!(found(&api).await, [""; 0]);
    operator(&api, "False");
    assert_eq!(found(&api).await, [r#"no pod of the operator is ready: ["operator"]"#]);
    operator(&api, "True");
    for (name, ready, wanted, fault) in [
        (DETECTOR, 1, 2, "1 of 2 pods of DaemonSet nodestack-gpu-detector are ready"),
        (DETECTOR, 0, 0, "DaemonSet nodestack-gpu-detector selects no node: check"),
        (PROBE, 1, 2, "1 of 2 pods of DaemonSet nodestack-nvml-probe are ready"),
        (PROBE, 0, 0, "DaemonSet nodestack-nvml-probe selects no node: check"),
    ] {
        working(&api);
        set(&api, name, ready, wanted);
        let found = found(&api).await;
        assert!(found.len() == 1 && found[0].starts_with(fault), "{found:?}, not {fault}");
    }
}

#[tokio::test]
async fn without_a_gpu_in_the_cluster_no_probe_is_needed() {
    let api = Api::new();
    working(&api);
    node(&api, "gpu", "false");
    set(&api, PROBE, 0, 0);
    assert_eq!(found(&api).await, [""; 0]);
    set(&api, DETECTOR, 1, 2);
    assert_eq!(found(&api).await.len(), 1);
}

#[tokio::test]
async fn what_the_controller_has_not_observed_is_not_ready() {
    for name in [DETECTOR, PROBE] {
        let api = Api::new();
        working(&api);
        api.write("helm", &format!("{SETS}/{name}"), |set| {
            set["spec"] = json!({"selector": {}, "template": {}, "minReadySeconds": 1});
        });
        let found = found(&api).await;
        assert!(found.len() == 1 && found[0].contains(&format!("latest generation of DaemonSet {name}")), "{found:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_fault_may_disappear_within_a_minute() {
    let api = Api::new();
    working(&api);
    set(&api, PROBE, 0, 1);
    let client = api.client();
    let starts = async {
        sleep(Duration::from_secs(50)).await;
        set(&api, PROBE, 1, 1);
    };
    let (found, ()) = tokio::join!(lasting_faults(&client, "gpu-operator"), starts);
    assert_eq!(found.expect("an answer"), [""; 0]);
    set(&api, PROBE, 0, 1);
    let began = Instant::now();
    let found = lasting_faults(&client, "gpu-operator").await.expect("an answer");
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(began.elapsed() >= Duration::from_mins(1), "given up after {:?}", began.elapsed());
}

#[tokio::test]
async fn the_crds_must_not_be_outdated() {
    let api = Api::new();
    working(&api);
    for (revision, expected) in [(Some(SCHEMA_REVISION), 0), (None, 1), (Some(SCHEMA_REVISION + 1), 0)] {
        set_revision(&api, GPU_NODES, revision);
        let found = found(&api).await;
        assert_eq!(found.len(), expected, "{found:?}");
        let words = ["CRD gpunodes.", "has no schema revision", "update the CRDs"];
        assert!(found.iter().all(|found| words.iter().all(|words| found.contains(words))), "{found:?}");
    }
}
