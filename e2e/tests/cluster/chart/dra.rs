//! What the chart renders for pools with `allocation.mode: DRA`.

use gpu_operator_crd::keys;
use serde_json::{Value, json};

use super::{cluster, documents, template};

/// The name of the DRA driver's objects, and of its service account.
const DRIVER: &str = "nodestack-dra-driver";

/// Renders the chart and returns the objects for DRA pools, in the order of their kinds.
fn objects(set: &str) -> Vec<Value> {
    let set = format!("image.repository=example.com/x,{set}");
    let rendered = documents(&template(&cluster(), &[&set]).expect("a chart")).expect("YAML").into_iter();
    let mut objects: Vec<_> =
        rendered.filter(|object| object["metadata"]["labels"]["app.kubernetes.io/name"] == DRIVER).collect();
    objects.sort_by_key(|object| object["kind"].to_string());
    objects
}

fn of_kind(set: &str, kind: &str) -> Value {
    objects(set).into_iter().find(|object| object["kind"] == kind).expect(kind)
}

#[test]
fn objects_for_dra_exist_only_if_it_is_enabled() {
    const ALL: [&str; 6] = [
        "ClusterRole",
        "ClusterRoleBinding",
        "DeviceClass",
        "ServiceAccount",
        "ValidatingAdmissionPolicy",
        "ValidatingAdmissionPolicyBinding",
    ];
    for (set, is_enabled, has_class) in [
        ("dra.enabled=false,dra.deviceClass=true", false, false),
        ("dra.enabled=true", true, true),
        ("dra.enabled=true,dra.deviceClass=false", true, false),
    ] {
        let found = objects(set);
        let kinds: Vec<_> = found.iter().map(|object| object["kind"].as_str().expect("a kind")).collect();
        let expected = ALL.into_iter().filter(|kind| is_enabled && (has_class || *kind != "DeviceClass"));
        assert_eq!(kinds, expected.collect::<Vec<_>>(), "{set}");
        for object in found.iter().filter(|object| object["kind"] != "DeviceClass") {
            assert_eq!(object["metadata"]["name"], DRIVER, "the operator's pods use this account");
        }
    }
}

#[test]
fn objects_for_dra_stay_with_the_pods_that_need_them() {
    for (policies, kept) in [("Keep", json!("keep")), ("Delete", Value::Null)] {
        let found = objects(&format!("dra.enabled=true,uninstall.policies={policies}"));
        assert_eq!(found.len(), 6);
        for object in found {
            assert_eq!(object["metadata"]["annotations"]["helm.sh/resource-policy"], kept, "{object}");
        }
    }
}

#[test]
fn the_device_class_offers_whole_gpus_as_the_plugin_does() {
    let class = of_kind("dra.enabled=true", "DeviceClass");
    assert_eq!(
        (&class["apiVersion"], &class["metadata"]["name"]),
        (&json!("resource.k8s.io/v1"), &json!("gpu.nvidia.com"))
    );
    let expression = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'";
    let selectors = json!([{"cel": {"expression": expression}}]);
    assert_eq!(class["spec"], json!({"selectors": selectors, "extendedResourceName": keys::GPU_RESOURCE}));
}

#[test]
fn the_dra_driver_reads_claims_and_writes_only_slices() {
    let role = of_kind("dra.enabled=true", "ClusterRole");
    let granted = |group: &str, resource: &str, verbs: &[&str]| json!({"apiGroups": [group], "resources": [resource], "verbs": verbs});
    let rules = [
        granted("resource.k8s.io", "resourceclaims", &["get"]),
        granted("resource.k8s.io", "resourceslices", &["list", "watch", "create", "update", "delete"]),
        granted("", "nodes", &["get"]),
    ];
    assert_eq!(role["rules"], json!(rules));
    let binding = of_kind("dra.enabled=true", "ClusterRoleBinding");
    assert_eq!(binding["subjects"], json!([{"kind": "ServiceAccount", "name": DRIVER, "namespace": "gpu-operator"}]));
    assert_eq!(of_kind("dra.enabled=true", "ServiceAccount")["automountServiceAccountToken"], false);
}
