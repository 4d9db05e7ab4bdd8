//! What `helm test` finds in an installed chart.

use gpu_operator::check::faults;
use serde_json::json;

use crate::{
    api::Api,
    cluster::{PODS, SETS},
};

#[tokio::test]
async fn operator_and_all_probes_must_be_ready() {
    let api = Api::new();
    let client = api.client();
    faults(&client, "gpu-operator").await.expect_err("the probe's DaemonSet does not exist");
    let state = |operator: &str, ready: i32, wanted: i32| {
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
    };
    for (operator, ready, wanted, expected) in [
        ("True", 2, 2, &[][..]),
        ("True", 1, 2, &["1 of 2 pods of DaemonSet nodestack-nvml-probe are ready"]),
        ("True", 0, 0, &["0 of 0 pods of DaemonSet nodestack-nvml-probe are ready"]),
        ("False", 2, 2, &[r#"no pod of the operator is ready: ["operator"]"#]),
    ] {
        state(operator, ready, wanted);
        assert_eq!(faults(&client, "gpu-operator").await.expect("an answer"), expected);
    }
}
