//! What the operator writes is accepted by the CRDs, also those of an earlier version: the words of a vocabulary that grows are no
//! closed enum. A status that is rejected keeps a node from being served.

use std::sync::LazyLock;
use test_support::planned::Planned;

use gpu_operator_crd::GpuNode;
use gpu_operator_plan::Plan;
use jsonschema::Validator;
use serde::Serialize;
use serde_json::Value;

const POLICIES: &str = include_str!("../../../../config/crd/clustergpupolicies.yaml");
const GPU_NODES: &str = include_str!("../../../../config/crd/gpunodes.yaml");

static POLICY_STATUS: LazyLock<Validator> = LazyLock::new(|| schema(POLICIES, "status"));
static GPU_NODE_SPEC: LazyLock<Validator> = LazyLock::new(|| schema(GPU_NODES, "spec"));
static GPU_NODE_STATUS: LazyLock<Validator> = LazyLock::new(|| schema(GPU_NODES, "status"));

/// Returns the schema of a field of a CRD's objects.
fn schema(crd: &str, field: &str) -> Validator {
    let crd: Value = serde_yaml::from_str(crd).expect("YAML");
    let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"][field];
    jsonschema::validator_for(schema).expect("a schema")
}

/// Returns the error of the first object of a plan that a schema rejects.
pub fn rejection(plan: &Plan) -> Option<String> {
    let specs = plan.specs().into_values().filter_map(|write| check(&GPU_NODE_SPEC, &write.spec));
    let statuses = plan.node_statuses().into_values().filter_map(|status| check(&GPU_NODE_STATUS, status));
    let policies = plan.statuses.values().filter_map(|status| check(&POLICY_STATUS, status));
    specs.chain(statuses).chain(policies).next()
}

/// Returns the error with which the schema rejects a GpuNode.
pub fn rejected(gpu_node: &GpuNode) -> Option<String> {
    let status = || check(&GPU_NODE_STATUS, gpu_node.status.as_ref()?);
    check(&GPU_NODE_SPEC, &gpu_node.spec).or_else(status)
}

fn check(schema: &Validator, object: &impl Serialize) -> Option<String> {
    let object = serde_json::to_value(object).expect("JSON");
    let error = schema.iter_errors(&object).next()?;
    Some(format!("{}: {error}", error.instance_path()))
}

#[test]
fn schemas_accept_words_of_a_later_version() {
    let unknown = serde_json::json!({
        "phase": "Remediation", "reason": "WaitingForOptics", "health": "Remediating",
        "report": {"gpus": [{"pciAddress": "0000:06:00.0", "health": {
            "state": "Remediating", "action": "CleanConnector",
            "causes": [{"kind": "OpticalLinkFlapping", "severity": "Notice", "since": "2026-01-01T00:00:00Z"}],
        }}], "nvml": {"state": "Restarting"}},
        "validation": {"result": "Inconclusive", "of": "a", "since": "2026-01-01T00:00:00Z"},
    });
    assert_eq!(check(&GPU_NODE_STATUS, &unknown), None);
    assert!(check(&GPU_NODE_STATUS, &serde_json::json!({"phase": "not a word"})).is_some());
}
