//! What `helm test` finds in an installed chart.

use axum::http::StatusCode;
use gpu_operator::check::faults;
use gpu_operator_crd::schema_revision::SCHEMA_REVISION;
use serde_json::json;

use crate::{
    admission::{BINDINGS, POLICIES, bind, install},
    api::{Api, Fault},
    cluster::{PODS, SETS},
    schema::{GPU_NODES, set_revision},
};

/// Creates the operator's pod with this state, and the probe's DaemonSet.
fn components(api: &Api, operator: &str, ready: i32, wanted: i32) {
    api.write("kubelet", &format!("{PODS}/operator"), |pod| {
        *pod = json!({
            "metadata": {"labels": {"app.kubernetes.io/name": "nodestack-gpu-operator"}},
            "status": {"conditions": [{"type": "Ready", "status": operator}]},
        });
    });
    api.write("controller", &format!("{SETS}/nodestack-nvml-probe"), |set| {
        set["status"] = json!({
            "numberReady": ready, "desiredNumberScheduled": wanted,
            "currentNumberScheduled": wanted, "numberMisscheduled": 0,
        });
    });
}

#[tokio::test]
async fn operator_and_all_probes_must_be_ready() {
    let api = Api::new();
    let client = api.client();
    faults(&client, "gpu-operator", &[]).await.expect_err("the probe's DaemonSet does not exist");
    for (operator, ready, wanted, expected) in [
        ("True", 2, 2, &[][..]),
        ("True", 1, 2, &["1 of 2 pods of DaemonSet nodestack-nvml-probe are ready"]),
        ("True", 0, 0, &["0 of 0 pods of DaemonSet nodestack-nvml-probe are ready"]),
        ("False", 2, 2, &[r#"no pod of the operator is ready: ["operator"]"#]),
    ] {
        components(&api, operator, ready, wanted);
        assert_eq!(faults(&client, "gpu-operator", &[]).await.expect("an answer"), expected);
    }
}

#[tokio::test]
async fn the_crds_must_be_of_this_version() {
    let api = Api::new();
    components(&api, "True", 1, 1);
    let client = api.client();
    for (revision, expected) in [
        (Some(SCHEMA_REVISION), &[][..]),
        (None, &["has no schema revision"]),
        (Some(SCHEMA_REVISION + 1), &["upgrade the operator"]),
    ] {
        set_revision(&api, GPU_NODES, revision);
        let found = faults(&client, "gpu-operator", &[]).await.expect("an answer");
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(
            found.iter().zip(expected).all(|(found, words)| found.contains("CRD gpunodes.") && found.contains(words))
        );
    }
}

#[tokio::test]
async fn all_admission_policies_must_be_enforced() {
    let api = Api::new();
    components(&api, "True", 1, 1);
    let names = ["a", "b"].map(|name| {
        install(&api, name);
        name.to_owned()
    });
    let client = api.client();
    let found = async || faults(&client, "gpu-operator", &names).await;
    assert_eq!(found().await.expect("an answer"), [""; 0]);
    bind(&api, "a", "Warn");
    api.delete(&format!("{POLICIES}/b"));
    let words = found().await.expect("an answer");
    assert_eq!(words.len(), 2, "{words:?}");
    assert!(words[0].contains("ValidatingAdmissionPolicyBinding a do not contain Deny"), "{words:?}");
    assert!(words[1].contains("ValidatingAdmissionPolicy b does not exist"), "{words:?}");
    api.fail(|made| if made.path == BINDINGS { Fault::Refused(StatusCode::FORBIDDEN) } else { Fault::None });
    found().await.expect_err("the bindings may not be read");
}
