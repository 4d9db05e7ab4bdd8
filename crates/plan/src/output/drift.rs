//! Drift: whether an object still is as it was applied.

use gpu_operator_common::quantity::Amount;
use k8s_openapi::api::apps::v1::DaemonSet;
use serde_json::Value;

use crate::world::DaemonSetFacts;

/// Returns whether another writer changed or removed a field of an applied DaemonSet. Additions are found by the
/// managed fields: [`DaemonSetFacts::added_by`].
pub fn drifted(present: &DaemonSetFacts, wanted: &DaemonSet) -> bool {
    let (Some(present), Some(wanted)) = (&present.spec, &wanted.spec) else {
        return false;
    };
    match (serde_json::to_value(present), serde_json::to_value(wanted)) {
        (Ok(present), Ok(wanted)) => !holds(&present, &wanted, false),
        _ => false,
    }
}

/// Returns whether `present` contains everything in `wanted`; the API server sets fields that `wanted` leaves open.
/// `quantities` is whether strings are quantities, which the API server normalizes.
fn holds(present: &Value, wanted: &Value, quantities: bool) -> bool {
    match (present, wanted) {
        (Value::Object(present), Value::Object(wanted)) => wanted.iter().all(|(key, wanted)| {
            let quantities = quantities || matches!(key.as_str(), "limits" | "requests");
            present.get(key).map_or_else(|| is_empty(wanted), |present| holds(present, wanted, quantities))
        }),
        (Value::Array(present), Value::Array(wanted)) => {
            present.len() == wanted.len()
                && present.iter().zip(wanted).all(|(present, wanted)| holds(present, wanted, quantities))
        }
        (Value::String(present), Value::String(wanted)) if quantities => {
            present == wanted || present.parse::<Amount>().is_ok_and(|present| wanted.parse() == Ok(present))
        }
        _ => present == wanted,
    }
}

/// Returns whether the API server omits a value.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(present: &str, wanted: &str) -> bool {
        let value = |yaml: &str| serde_yaml::from_str::<Value>(yaml).unwrap();
        holds(&value(present), &value(wanted), false)
    }

    #[test]
    fn fields_that_the_api_server_sets_or_omits_are_no_drift() {
        assert!(check("{a: 1, dnsPolicy: ClusterFirst}", "{a: 1}"));
        assert!(check("{env: [{name: A}]}", "{env: [{name: A, value: ''}]}"));
        assert!(check("{limits: {cpu: '1', memory: 1Gi}}", "{limits: {cpu: 1000m, memory: 1024Mi}}"));
        assert!(check(
            "{main: {resources: {limits: {memory: 1500M}}}}",
            "{main: {resources: {limits: {memory: 1.5G}}}}"
        ));
        assert!(check("{limits: {memory: 1P}}", "{limits: {memory: '1e15'}}"));
    }

    #[test]
    fn changed_or_removed_fields_are_drift() {
        assert!(!check("{a: 2}", "{a: 1}"));
        assert!(!check("{}", "{a: 1}"));
        assert!(!check("{}", "{hostPID: false}"));
        assert!(!check("{tolerations: []}", "{tolerations: [{operator: Exists}]}"));
        assert!(!check("{env: [{name: A}, {name: B}]}", "{env: [{name: A}]}"));
        assert!(!check("{limits: {memory: 2Gi}}", "{limits: {memory: 1Gi}}"));
        assert!(!check("{image: '1000m'}", "{image: '1'}"));
    }
}
