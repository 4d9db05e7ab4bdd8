//! The effect of each value.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use cluster_client::handle::Cluster;
use futures::{StreamExt, stream};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, ValidationDirective},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use super::{EVERYTHING, documents, render};

/// Returns the object that a dry run can create: under a name of its own, because it would otherwise be merged with an object
/// that is installed. Returns none for the kinds of the Prometheus Operator: the cluster does not have their CRDs.
fn for_dry_run(mut object: Value) -> Option<Value> {
    if object["apiVersion"] == "monitoring.coreos.com/v1" {
        return None;
    }
    if object["kind"] == "Pod" {
        // Pods are only admitted once their service account and priority class exist. A PodTemplate has the same fields.
        object = json!({
            "apiVersion": "v1", "kind": "PodTemplate", "metadata": object["metadata"],
            "template": {"metadata": object["metadata"], "spec": object["spec"]},
        });
    }
    if object["kind"] != "CustomResourceDefinition" {
        let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
        object["metadata"]["name"] = format!("{name}-dry-run").into();
    }
    Some(object)
}

/// Applies an object as a dry run in which the API server also rejects unknown fields.
async fn dry_run(client: &Client, object: &Value) -> Result<()> {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str).with_context(|| format!("{path}: {object}"));
    let (group, version) = text("/apiVersion")?.split_once('/').unwrap_or(("", text("/apiVersion")?));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, text("/kind")?));
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        Ok(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        Err(_) => Api::all_with(client.clone(), &resource),
    };
    let strict = PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::apply("chart") };
    api.patch(text("/metadata/name")?, &strict.force().dry_run(), &Patch::Apply(object)).await?;
    Ok(())
}

/// Applies objects, each given with the setting that renders it, and returns the rejections.
async fn rejections(client: &Client, objects: &[(String, Value)]) -> Vec<String> {
    let results = stream::iter(objects).map(|(setting, object)| async move {
        let error = dry_run(client, object).await.err()?;
        Some(format!("{setting}: {} {}: {error:#}", object["kind"], object["metadata"]["name"]))
    });
    results.buffer_unordered(4).filter_map(async |rejection| rejection).collect().await
}

/// Collects the paths and defaults of all values.
fn leaves(path: &str, value: &Value, found: &mut Vec<(String, Value)>) {
    match value.as_object().filter(|fields| !fields.is_empty()) {
        Some(fields) => {
            for (name, value) in fields {
                let name = name.replace('.', "\\.");
                leaves(&if path.is_empty() { name } else { format!("{path}.{name}") }, value, found);
            }
        }
        None => found.push((path.to_owned(), value.clone())),
    }
}

/// Returns values of the same type, of which a schema accepts some.
fn alternatives(value: &Value) -> Vec<Value> {
    let digest = format!("sha256:{:064}", 0);
    let alternatives = match value {
        Value::Bool(_) => json!([true, false]),
        Value::Number(_) => json!([81]),
        Value::String(_) => {
            // The first one is also a namespace that exists.
            json!([
                "default",
                "100Mi",
                "1m",
                "/a",
                "0.0.0.0:81",
                digest,
                "Always",
                "OnDelete",
                "Delete",
                "11%",
                "https://a/",
                "a/b",
                "Unconfined",
            ])
        }
        Value::Array(_) => json!([
            [],
            [{"name": "a"}],
            [{"key": "a"}],
            [{"podSelector": {}}],
            [{"ports": [{"port": 81}]}],
            [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
            [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
            [{"name": "a", "mountPath": "/a"}],
            ["a"],
        ]),
        _ => json!([
            {"a": "b"},
            {"podAffinity": {"a": "b"}},
            {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
        ]),
    };
    alternatives.as_array().cloned().expect("values")
}

#[test]
fn every_value_has_an_effect_that_the_api_server_accepts() {
    // Documents are compared as texts: most are the same as without the value, and the CRDs are large.
    fn texts(rendered: &str) -> impl Iterator<Item = &str> {
        rendered.split("\n---\n")
    }
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let cluster = runtime.block_on(Cluster::connect()).expect("a cluster");
    let values = std::fs::read_to_string(cluster.chart().join("values.yaml")).expect("values");
    let mut found = Vec::new();
    leaves("", &serde_yaml::from_str(&values).expect("YAML"), &mut found);
    assert!(found.len() > 50, "{found:?}");
    // One of the two monitors excludes the other.
    let bases = ["podMonitor", "serviceMonitor"].map(|monitor| {
        let base = EVERYTHING.map(|set| set.replace("podMonitor", monitor));
        (render(&cluster, &["--set", &base.join(",")]).expect("a chart"), base)
    });
    // Every document, with the first setting that renders it.
    let mut rendered = BTreeMap::new();
    for (text, _) in &bases {
        rendered.extend(texts(text).map(|document| (document.to_owned(), "all objects".to_owned())));
    }
    for (path, value) in found {
        let (before, base) = &bases[usize::from(path.contains("serviceMonitor"))];
        // --set would take precedence over --set-json.
        let base: Vec<_> = base.iter().filter(|set| !set.starts_with(&path)).cloned().collect();
        // Values that the schema does not accept are skipped.
        let changed = alternatives(&value).into_iter().find_map(|other| {
            let setting = format!("{path}={other}");
            let after = render(&cluster, &["--set", &base.join(","), "--set-json", &setting]).ok()?;
            (after != *before).then_some((setting, after))
        });
        let (setting, after) = changed.unwrap_or_else(|| panic!("{path} has no effect"));
        for document in texts(&after) {
            rendered.entry(document.to_owned()).or_insert_with(|| setting.clone());
        }
    }
    let objects = rendered.iter().flat_map(|(text, setting)| {
        let objects = documents(text).expect("YAML").into_iter().filter_map(for_dry_run);
        objects.map(|object| (setting.clone(), object))
    });
    let objects: Vec<_> = objects.collect();
    let client = cluster.client();
    let rejected = runtime.block_on(rejections(&client, &objects));
    assert!(rejected.is_empty(), "{}", rejected.join("\n"));
    // Checks that the dry run does reject invalid objects.
    let (_, mut wrong) = objects.into_iter().find(|(_, object)| object["kind"] == "Deployment").expect("a Deployment");
    wrong["spec"]["replica"] = 1.into();
    let rejection = runtime.block_on(dry_run(&client, &wrong)).expect_err("rejected");
    assert!(format!("{rejection:#}").contains(".spec.replica"), "{rejection:#}");
}
