//! Input that the probe does not control, damaged in every way: it never panics, and what the probe reports fits the API.

mod host;
mod nvml;

use std::sync::LazyLock;

use gpu_operator_crd::Report;
use jsonschema::Validator;
use serde_json::Value;
use test_support::damaged;

fn samples(kind: &str) -> Vec<Vec<u8>> {
    damaged::corpus(env!("CARGO_MANIFEST_DIR"), kind)
}

/// Fails unless the API server would accept a report.
pub fn fits_the_api(report: &Report) {
    static SCHEMA: LazyLock<Validator> = LazyLock::new(|| {
        let (_, crd) = gpu_operator_crd::crds().swap_remove(1);
        let crd = serde_json::to_value(crd).unwrap();
        let path = "/spec/versions/0/schema/openAPIV3Schema/properties/status/properties/report";
        jsonschema::validator_for(crd.pointer(path).unwrap()).unwrap()
    });
    let report = serde_json::to_value(report).unwrap();
    let error = SCHEMA.iter_errors(&report).next().map(|error| format!("{}: {error}", error.instance_path()));
    assert_eq!(error, None);
    assert!(is_exact(&report), "an integer beyond 64 bits with sign is stored as a fraction: {report}");
}

fn is_exact(value: &Value) -> bool {
    match value {
        Value::Number(number) => number.is_i64(),
        Value::Array(values) => values.iter().all(is_exact),
        Value::Object(fields) => fields.values().all(is_exact),
        _ => true,
    }
}
