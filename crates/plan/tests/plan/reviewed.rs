//! Golden files of rendered DaemonSets. The file of the default policy contains them whole; every other file contains, field by
//! field, how its DaemonSets differ from those of a similar case, so that a change can be reviewed where it is made.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use crate::sim::Sim;
use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::ResourceExt;
use serde_json::Value;

/// A fleet with the default policy.
pub(crate) fn default_fleet() -> Sim {
    Sim::settled_fleet("{}", &["a"])
}

/// The fields of the DaemonSets with which others are compared.
pub(crate) struct Base(BTreeMap<Stage, BTreeMap<String, String>>);

impl Base {
    /// Returns the fields of the first DaemonSet of each stage.
    pub(crate) fn of(sim: &Sim) -> Self {
        let of_stage = |stage| Some((stage, fields(sim.sets_of(stage).first()?)));
        Self(Stage::ALL.into_iter().filter_map(of_stage).collect())
    }
}

/// Compares the differences of some stages' DaemonSets from others with their golden file.
pub(crate) fn review(name: &str, sim: &Sim, stages: &[Stage], base: &Base) {
    let mut text = String::new();
    for stage in stages {
        let base = base.0.get(stage).cloned().unwrap_or_default();
        for set in sim.sets_of(*stage) {
            writeln!(text, "{}", set.name_any()).expect("a string takes everything");
            differences(&base, &fields(set), &mut text);
        }
    }
    insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
        insta::assert_snapshot!(name, text);
    });
}

fn differences(base: &BTreeMap<String, String>, fields: &BTreeMap<String, String>, text: &mut String) {
    let paths: BTreeSet<_> = base.keys().chain(fields.keys()).collect();
    for path in paths {
        let (before, after) = (base.get(path), fields.get(path));
        for (sign, value) in [("-", before), ("+", after)] {
            if let Some(value) = value.filter(|_| before != after) {
                writeln!(text, "{sign} {path}: {value}").expect("a string takes everything");
            }
        }
    }
}

/// Returns a DaemonSet's fields by path, without its revision, which each DaemonSet has its own of.
fn fields(set: &DaemonSet) -> BTreeMap<String, String> {
    let stage = set.labels()[keys::STAGE].clone();
    let revision = set.name_any().replacen(&format!("{stage}-"), "", 1);
    let mut found = BTreeMap::new();
    let text = serde_json::to_string(set).expect("JSON").replace(&revision, "REVISION");
    collect("", &serde_json::from_str(&text).expect("JSON"), &mut found);
    found.retain(|path, _| !path.ends_with(keys::APPLIED) && path != "metadata.generation");
    found
}

fn collect(path: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let below = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
    let name = |value: &Value| Some(value.get("mountPath").or_else(|| value.get("name"))?.as_str()?.to_owned());
    let names = || value.as_array()?.iter().map(name).collect::<Option<Vec<_>>>();
    match value {
        Value::Object(fields) => {
            fields.iter().filter(|(key, _)| *key != "name").for_each(|(key, value)| collect(&below(key), value, found));
        }
        // The order of named elements is a field of its own.
        Value::Array(elements) if names().is_some_and(|names| !names.is_empty()) => {
            let names = names().unwrap_or_default();
            for (name, element) in names.iter().zip(elements) {
                collect(&format!("{path}[{name}]"), element, found);
            }
            found.insert(path.to_owned(), names.join(", "));
        }
        value => drop(found.insert(path.to_owned(), value.to_string())),
    }
}
