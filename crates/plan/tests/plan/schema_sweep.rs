//! Every field of a policy, by the schema of the CRD: each has an effect, and without it everything is as before.

mod fields;
mod nodes;
mod table;

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{LazyLock, Mutex},
    thread,
};

use crate::sim::Sim;
use fields::Field;
use gpu_operator_crd::{GpuNodeSpec, health::HealthState, keys};
use k8s_openapi::jiff::Timestamp;
use kube::core::cel;
use serde::Serialize;
use serde_json::{Value, json};

/// The schema of policies, as in the file of the CRD.
static SCHEMA: LazyLock<Value> = LazyLock::new(|| {
    let (_, crd) = gpu_operator_crd::crds().swap_remove(0);
    serde_json::to_value(crd).expect("JSON")["spec"]["versions"][0]["schema"]["openAPIV3Schema"].take()
});

/// Returns the error with which the API server rejects a spec.
fn rejection(spec: &Value) -> Option<String> {
    static TYPES: LazyLock<jsonschema::Validator> =
        LazyLock::new(|| jsonschema::validator_for(&SCHEMA["properties"]["spec"]).expect("a schema"));
    static RULES: LazyLock<cel::CompiledSchema> = LazyLock::new(|| cel::compile_schema(&SCHEMA));
    let by_type = TYPES.iter_errors(spec).next().map(|error| format!("{}: {error}", error.instance_path()));
    let policy = json!({"metadata": {"name": "all"}, "spec": spec});
    by_type
        .or_else(|| cel::Validator::new().validate_compiled(&RULES, &policy, None).err().map(|error| error.to_string()))
}

/// Applies a spec and runs the fleet until nothing changes any more.
fn applied(sim: &Sim, spec: &Value) -> Result<Sim, String> {
    let mut sim = sim.clone();
    sim.plans.clear();
    sim.apply_spec("all", serde_json::from_value(spec.clone()).map_err(|error| error.to_string())?);
    let settled = catch_unwind(AssertUnwindSafe(|| sim.settle()));
    settled.map(|()| sim).map_err(|_| "the fleet does not settle; see above".to_owned())
}

/// The names of fields that depend on time.
const TIMES: [&str; 7] =
    ["since", "deadline", "progressingSince", "lastTransitionTime", "observedGeneration", "generation", "failures"];

/// Returns what the operator has written, one line for each value, without times.
fn observed(sim: &Sim) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    let mut add = |name: String, object: Value| flatten(&name, &object, &mut lines);
    for (name, node) in &sim.nodes {
        // The condition of its health is only written once a GPU has had a problem.
        let is_shown = |kind: &str, status: &str| kind != keys::HEALTH_CONDITION || status != "True";
        let conditions = node.own_conditions.iter().filter(|(kind, condition)| is_shown(kind, &condition.status));
        let conditions: BTreeMap<_, _> = conditions.collect();
        add(format!("Node {name}"), json!({"labels": node.labels, "taints": node.taints, "conditions": conditions}));
    }
    sim.sets.iter().for_each(|(name, set)| add(format!("DaemonSet {name}"), value(set)));
    for (name, class) in &sim.runtime_classes {
        add(format!("RuntimeClass {name}"), json!(format!("{class:?}")));
    }
    for (name, gpu_node) in &sim.gpu_nodes {
        let mut status = gpu_node.status.clone().unwrap_or_default();
        status.report = None;
        // A healthy state is only written together with the next change.
        status.health = status.health.filter(|health| *health == HealthState::Unhealthy);
        status.conditions.retain(|condition| condition.type_ != "Healthy" || condition.status == "False");
        // The number of updates stays, and the record of the last one.
        let spec = GpuNodeSpec { updates_begun: 0, last_update: None, ..gpu_node.spec.clone() };
        add(format!("GpuNode {name}"), json!({"spec": spec, "status": status}));
    }
    for (name, policy) in &sim.policies {
        add(format!("policy {name}"), value(&policy.status));
    }
    lines
}

fn value(object: impl Serialize) -> Value {
    serde_json::to_value(object).expect("JSON")
}

fn flatten(path: &str, value: &Value, lines: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, _)| !TIMES.contains(&name.as_str())) {
                flatten(&format!("{path}.{name}"), value, lines);
            }
        }
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| flatten(&format!("{path}[{index}]"), value, lines));
        }
        value => drop(lines.insert(format!("{path}: {}", without_times(&value.to_string())))),
    }
}

/// Returns a text with its times replaced.
fn without_times(text: &str) -> String {
    let word =
        |word: &str| word.trim_end_matches(',').parse::<Timestamp>().map_or(word.to_owned(), |_| "TIME".to_owned());
    text.split(' ').map(word).collect::<Vec<_>>().join(" ")
}

/// Returns the first differences between two states.
fn differences(before: &BTreeSet<String>, after: &BTreeSet<String>) -> Option<String> {
    let gone = before.difference(after).take(4).map(|line| format!("\n    - {line}"));
    let new = after.difference(before).take(4).map(|line| format!("\n    + {line}"));
    let lines: String = gone.chain(new).collect();
    (!lines.is_empty()).then_some(lines)
}

/// Returns what is wrong with a field.
fn faults(field: &Field) -> Vec<String> {
    let specs = std::iter::once(&field.base).chain(field.changes.iter().map(|(spec, _)| spec));
    let invalid: Vec<_> = specs.filter_map(|spec| Some(format!("{spec}: invalid: {}", rejection(spec)?))).collect();
    if !invalid.is_empty() {
        return invalid;
    }
    let base = match applied(&nodes::fleet(field.row.nodes), &field.base) {
        Ok(base) => base,
        Err(error) => return vec![format!("{}: {error}", field.base)],
    };
    let before = observed(&base);
    let fault = |(spec, is_default): &(Value, bool)| {
        let changed = applied(&base, spec)?;
        let effect = differences(&before, &observed(&changed));
        match effect {
            None if !is_default && field.row.no_effect.is_none() => return Err("no effect".to_owned()),
            Some(effect) if *is_default => return Err(format!("the default has an effect:{effect}")),
            _ => {}
        }
        let mut after = observed(&applied(&changed, &field.base)?);
        // A policy keeps the RuntimeClasses that it has needed.
        after.retain(|line| !line.starts_with("RuntimeClass ") || before.contains(line));
        match differences(&before, &after).filter(|_| field.row.stays.is_none()) {
            Some(left) => Err(format!("after the field is unset:{left}")),
            None => Ok(()),
        }
    };
    field.changes.iter().filter_map(|change| Some(format!("{}: {}", change.0, fault(change).err()?))).collect()
}

#[test]
fn every_field_has_an_effect_that_ends_with_it() {
    let fields = fields::all(&SCHEMA["properties"]["spec"]);
    let (next, found) = (Mutex::new(fields.iter()), Mutex::new(BTreeMap::new()));
    let work = || {
        while let Some(field) = { next.lock().expect("no panic").next() } {
            let faults = faults(field);
            if !faults.is_empty() {
                found.lock().expect("no panic").insert(field.path.join("."), faults);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().expect("no panic");
    let report: Vec<_> = found.iter().map(|(path, faults)| format!("{path}\n  {}", faults.join("\n  "))).collect();
    assert!(report.is_empty(), "{} of {} fields:\n{}", found.len(), fields.len(), report.join("\n"));
}
