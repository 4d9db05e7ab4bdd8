//! The translation of whole objects, and a walk over all fields that NVIDIA's operator has.

use std::{collections::BTreeSet, sync::LazyLock};

use gpu_operator_crd::policy::ClusterGpuPolicySpec;
use serde_json::{Value, json};
use test_api_server::Api;

use super::*;
use crate::testing::assert_narrow;

const DEFAULT: &str = include_str!("../../tests/nvidia_default.yaml");
const FLEET: &str = include_str!("../../tests/nvidia_fleet.yaml");
const FIELDS: &str = include_str!("../../tests/nvidia_fields.txt");

static CATALOGUE: LazyLock<Catalogue> = LazyLock::new(|| Catalogue::builtin().unwrap());

fn of(objects: Objects) -> Imported {
    import(objects, &CATALOGUE)
}

fn policy_of(spec: &str) -> (Value, String) {
    let spec: Value = serde_yaml::from_str(spec).unwrap();
    let policy =
        json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": spec});
    let imported = of(Objects::of(vec![policy]));
    let text = |remark: &Remark| format!("{}: {}\n", remark.fields.join(" "), remark.text);
    (serde_json::to_value(&imported.policy).unwrap(), imported.remarks.iter().map(text).collect())
}

#[test]
fn a_policy_has_the_remarks_at_its_head() {
    for (name, text) in [("default", DEFAULT), ("fleet", FLEET)] {
        let printed = print(&of(of_file("-", text).unwrap())).unwrap();
        policy_file::policies(name, &printed).unwrap();
        assert_narrow(&printed.lines().filter(|line| line.starts_with('#')).collect::<Vec<_>>().join("\n"));
        insta::assert_snapshot!(name, printed);
    }
}

#[test]
fn values_are_translated_as_the_chart_does() {
    let values = "
        driver: {version: 580.105.08, nvidiaDriverCRD: {enabled: true, nodeSelector: {gpu: a100}}, upgradePolicy: {gpuPodDeletion: {force: true}}}
        gfd: {enabled: false}
        devicePlugin: {config: {create: true, default: four, data: {four: 'sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}'}}}
        clusterPolicy: {deployCR: false}";
    let imported = of(of_values("-", values).unwrap());
    let policy = serde_json::to_value(&imported.policy).unwrap();
    let pool = &policy["pools"][0];
    assert_eq!(pool["match"]["nodeSelector"]["matchLabels"], json!({"gpu": "a100"}), "{policy:#}");
    assert_eq!(
        (&pool["driver"]["version"], &pool["rollout"]["gpuPods"]["barePods"]),
        (&json!("580.105.08"), &json!("Evict"))
    );
    assert_eq!(policy["defaults"]["devicePlugin"]["sharing"]["timeSlicing"]["replicas"], 4);
    assert_eq!(policy["defaults"]["devicePlugin"]["mig"]["strategy"], "Single");
    assert_eq!(policy["defaults"]["driver"]["source"], "Preinstalled");
    assert!(policy["compatibility"].is_null());
    assert!(
        imported.remarks.iter().any(|remark| remark.fields == ["clusterPolicy.deployCR"]),
        "{:#?}",
        imported.remarks
    );
}

#[test]
fn a_field_becomes_what_the_table_shows() {
    for (spec, pointer, expected) in [
        ("{driver: {enabled: false, version: a}}", "/defaults/driver", json!({"source": "Preinstalled"})),
        (
            "{driver: {enabled: false}, hostPaths: {driverInstallDir: /opt/nvidia}}",
            "/defaults/driver/preinstalled/installDir",
            json!("/opt/nvidia"),
        ),
        ("{driver: {version: '580', usePrecompiled: true}}", "/defaults/driver/container/precompiled", json!(true)),
        (
            "{driver: {version: 580.1.1-a, repository: r.example.com/nvidia}}",
            "/defaults/driver",
            json!({"version": "580.1.1", "image": {"repository": "r.example.com/nvidia/driver"}}),
        ),
        (
            "{driver: {rdma: {enabled: true}, version: 580.1.1}}",
            "/defaults/driver/env/0/name",
            json!("GPU_DIRECT_RDMA_ENABLED"),
        ),
        (
            "{driver: {upgradePolicy: {autoUpgrade: false, maxParallelUpgrades: 0}}}",
            "/rollout",
            json!({"maxParallel": 100, "gpuPods": {"mode": "Evict"}, "paused": true}),
        ),
        ("{driver: {upgradePolicy: {podDeletion: {timeoutSeconds: 300}}}}", "/rollout/gpuPods/timeout", json!("300s")),
        ("{driver: {upgradePolicy: {drain: {enable: false, force: true}}}}", "/rollout/gpuPods/barePods", Value::Null),
        ("{toolkit: {enabled: false, version: v1}}", "/defaults/toolkit", json!({"injection": "None"})),
        ("{toolkit: {version: 'sha256:1'}}", "/defaults/toolkit/image", json!({"digest": "sha256:1"})),
        (
            "{toolkit: {env: [{name: CONTAINERD_SET_AS_DEFAULT, value: 'false'}, {name: A, value: b}]}}",
            "/defaults/toolkit",
            json!({"setAsDefault": false, "env": [{"name": "A", "value": "b"}]}),
        ),
        (
            "{toolkit: {env: [{name: CONTAINERD_SOCKET, value: /run/k3s/containerd/containerd.sock}]}}",
            "/defaults/toolkit",
            Value::Null,
        ),
        ("{cdi: {enabled: false}}", "/defaults/toolkit/injection", json!("Runtime")),
        ("{cdi: {enabled: true, nriPluginEnabled: true}}", "/defaults/toolkit/injection", json!("NRI")),
        ("{devicePlugin: {enabled: false}}", "/defaults/devicePlugin", json!({"flavor": "External"})),
        ("{sandboxWorkloads: {enabled: true}}", "/nodeSelector/matchExpressions/0/operator", json!("NotIn")),
        ("{daemonsets: {labels: {helm.sh/chart: a, b: c}}}", "/podMetadata/labels", json!({"b": "c"})),
        ("{gfd: {}}", "/compatibility/labels", json!("GFD")),
    ] {
        let (policy, remarks) = policy_of(spec);
        assert_eq!(policy.pointer(pointer).unwrap_or(&Value::Null), &expected, "{spec}\n{policy:#}\n{remarks}");
    }
}

#[test]
fn a_driver_of_all_nodes_sets_the_defaults_or_is_last() {
    let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "nvidia.com/v1", "kind": kind, "metadata": {"name": name}, "spec": spec});
    let of_drivers = |drivers: [(&str, Value); 3]| {
        let policy = object("ClusterPolicy", "p", json!({"driver": {"useNvidiaDriverCRD": true}}));
        let drivers = drivers.map(|(name, spec)| object("NVIDIADriver", name, spec));
        let imported = of(Objects::of([policy].into_iter().chain(drivers).collect()));
        let pools: Vec<_> = imported.policy.pools.iter().map(|pool| pool.name.to_string()).collect();
        (imported.policy.defaults.driver.version, pools, imported.remarks)
    };
    let a = || json!({"version": "570.1.1", "nodeSelector": {"gpu": "a"}});
    let (version, pools, remarks) =
        of_drivers([("a", a()), ("b", json!({"version": "580.1.1"})), ("c", json!({"version": "590.1.1"}))]);
    assert_eq!((version.as_deref(), pools), (Some("580.1.1"), vec!["a".to_owned()]));
    assert!(remarks[0].object == "NVIDIADriver c" && remarks[0].text.contains("left out"), "{remarks:#?}");
    let guests = json!({"version": "570.1.1", "driverType": "vgpu", "nodeSelector": {"gpu": "c"}});
    let (version, pools, _) = of_drivers([("a", a()), ("b", json!({"driverType": "vgpu"})), ("c", guests)]);
    assert_eq!((version, pools), (None, vec!["c".to_owned(), "a".to_owned(), "b".to_owned()]));
}

#[test]
fn a_remark_names_the_field_and_what_to_do() {
    for (spec, remark) in [
        ("{}", "driver.version: Not set: the operator would choose"),
        ("{driver: {version: 'sha256:1'}}", "driver.version: It is a digest"),
        ("{driver: {version: '580'}}", "driver.version: 580 is a branch: the policy has its version 580."),
        ("{driver: {version: latest}}", "driver.version: latest is no full version"),
        ("{driver: {certConfig: {name: c}}}", "driver.certConfig.name: ConfigMap c was not read"),
        (
            "{driver: {usePrecompiled: maybe}}",
            "driver.usePrecompiled: This value cannot be translated. In a policy: driver.container.precompiled",
        ),
        (
            "{driver: {upgradePolicy: {waitForCompletion: {podSelector: 'a in b'}}}}",
            "podSelector: Cannot be translated: a in b",
        ),
        (
            "{driver: {imagePullPolicy: Always}, toolkit: {imagePullPolicy: Never}}",
            "driver.imagePullPolicy toolkit.imagePullPolicy: All images",
        ),
        (
            "{devicePlugin: {config: {name: c, default: d}}}",
            "devicePlugin.config.name devicePlugin.config.default: ConfigMap c was not read",
        ),
        (
            "{migManager: {config: {name: c}}}",
            "migManager.config.name migManager.config.default: ConfigMap c was not read",
        ),
        ("{dcgmExporter: {enabled: true, image: a}}", "dcgmExporter.enabled dcgmExporter.image: No dcgm-exporter"),
        ("{operator: {runtimeClass: nvidia}}", "operator.runtimeClass: Where containers get GPUs by CDI"),
        ("{future: {field: 1}}", "future.field: This field is not known"),
    ] {
        let (policy, remarks) = policy_of(spec);
        assert!(remarks.contains(remark), "{spec}\n{remarks}\n{policy:#}");
    }
    let (_, remarks) = policy_of(
        "{driver: {version: 580.1.1}, dcgm: {enabled: false, image: a}, vgpuManager: {enabled: true}, hostPaths: {rootFS: /}}",
    );
    assert_eq!(remarks, "");
}

#[test]
fn a_layout_changes_gpus_only_where_it_is_known() {
    let file = |configs: &str| json!({"kind": "ConfigMap", "metadata": {"name": "layouts"}, "data": {"config.yaml": format!("mig-configs: {{{configs}}}")}});
    let off = "off: [{devices: all, mig-enabled: false}]";
    let seven = "seven: [{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}]";
    let filtered = "filtered: [{devices: all, device-filter: a, mig-enabled: true, mig-devices: {1g.10gb: 7}}]";
    let two = "two: [{devices: [0], mig-enabled: true, mig-devices: {1g.10gb: 2}}]";
    let one =
        |number: u8| format!("a{number}: [{{devices: [{number}], mig-enabled: true, mig-devices: {{1g.10gb: 1}}}}]");
    let many: Vec<String> = (0..40).map(one).chain([off.to_owned()]).collect();
    let disabled = json!({"strategy": "Single", "mode": "Disabled"});
    let left = json!({"strategy": "Single"});
    let of_seven = json!({"strategy": "Single", "layout": [{"profiles": [{"profile": "1g.10gb", "count": 7}]}]});
    for (configs, defaults, pools) in [
        (off.to_owned(), &disabled, vec![]),
        ([off, seven].join(", "), &disabled, vec![&of_seven]),
        // Neither what cannot be translated, nor what strategy Single does not support, is disabled.
        ([off, filtered].join(", "), &disabled, vec![&left]),
        ([off, two].join(", "), &disabled, vec![&left]),
        (many.join(", "), &left, vec![]),
    ] {
        let spec =
            json!({"mig": {"strategy": "single"}, "migManager": {"config": {"name": "layouts", "default": "off"}}});
        let policy = json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "spec": spec});
        let imported = of(Objects::of(vec![policy, file(&configs)]));
        let policy = serde_json::to_value(&imported.policy).unwrap();
        assert_eq!(&policy["defaults"]["devicePlugin"]["mig"], defaults, "{configs}\n{:#?}", imported.remarks);
        let of_pools: Vec<_> =
            policy["pools"].as_array().into_iter().flatten().map(|pool| &pool["devicePlugin"]["mig"]).collect();
        assert_eq!(of_pools, pools, "{configs}\n{:#?}", imported.remarks);
    }
}

#[test]
fn selectors_have_the_notation_of_kubectl() {
    for (text, expected) in [
        ("", Some("{}")),
        ("a=b,c==d", Some("{matchLabels: {a: b, c: d}}")),
        ("a!=b, c", Some("{matchExpressions: [{key: a, operator: NotIn, values: [b]}, {key: c, operator: Exists}]}")),
        (
            "a in (b, c),!d",
            Some("{matchExpressions: [{key: a, operator: In, values: [b, c]}, {key: d, operator: DoesNotExist}]}"),
        ),
        (
            "a,b notin (c)",
            Some("{matchExpressions: [{key: a, operator: Exists}, {key: b, operator: NotIn, values: [c]}]}"),
        ),
        ("a in (b", None),
        ("a within (b)", None),
        ("a b", None),
    ] {
        let expected = expected.map(|expected| serde_yaml::from_str(expected).unwrap());
        assert_eq!(selector::parse(text), expected, "{text}");
    }
}

#[test]
fn what_cannot_be_read_is_an_error_with_what_to_write() {
    let file = |text: &str| of_file("f", text).unwrap_err().to_string();
    let values = |text: &str| of_values("f", text).unwrap_err().to_string();
    for (error, message) in [
        (file("a: ["), "f: document 1 is not valid YAML: "),
        (
            file("driver: {}"),
            "f contains no ClusterPolicy or NVIDIADriver of nvidia.com; write them with: kubectl get ",
        ),
        (file("{apiVersion: kyverno.io/v1, kind: ClusterPolicy}"), "of nvidia.com, only ClusterPolicy; "),
        (values("[]"), "f contains no values of NVIDIA's chart; write them with: helm get values "),
        (values("kind: ClusterPolicy"), "write --filename instead of --values"),
    ] {
        assert!(error.contains(message), "{error}");
    }
}

#[tokio::test]
async fn the_cluster_is_read_with_the_config_maps_of_its_objects() {
    let api = Api::new();
    assert!(matches!(of_cluster(&api.client()).await, Err(ImportError::NotInstalled)));
    let spec = json!({"driver": {"version": "580.1.1"}, "devicePlugin": {"config": {"name": "sharing"}}});
    let policy = json!({"metadata": {"name": "p"}, "spec": spec, "status": {"namespace": "other"}});
    api.put("/apis/nvidia.com/v1/clusterpolicies/p", policy);
    let data = json!({"two": "sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}"});
    api.put("/api/v1/namespaces/other/configmaps/sharing", json!({"metadata": {"name": "sharing"}, "data": data}));
    let imported = of(of_cluster(&api.client()).await.unwrap());
    assert_eq!(imported.policy.pools.len(), 1, "{:#?}", imported.remarks);
    api.forbid("configmaps");
    let imported = of(of_cluster(&api.client()).await.unwrap());
    assert!(imported.remarks[0].text.starts_with("ConfigMap sharing was not read"), "{:#?}", imported.remarks);
    api.forbid("clusterpolicies");
    let error = of_cluster(&api.client()).await.unwrap_err().to_string();
    assert!(
        error.starts_with("the right to list clusterpolicies.nvidia.com is missing; bind the ClusterRole"),
        "{error}"
    );
}

/// The fields that the chart evaluates, not the operator: [`values_are_translated_as_the_chart_does`].
const OF_CHART: [&str; 5] = [
    "driver.nvidiaDriverCRD.",
    "devicePlugin.config.create",
    "devicePlugin.config.data",
    "migManager.config.create",
    "migManager.config.data",
];

/// A field that repeats what others imply: only an `NVIDIADriver` without a selector can have it.
const IMPLIED: &str = "NVIDIADriver.default";

/// Returns an object in which everything matters, with a value at a path.
fn with(kind: &str, path: &str, value: &Value) -> Objects {
    let upgrades = json!({
        "waitForCompletion": {"podSelector": "a=b", "timeoutSeconds": 100},
        "podDeletion": {"timeoutSeconds": 5},
        "drain": {"enable": true},
    });
    let driver = json!({"version": "580.1.1", "upgradePolicy": upgrades});
    let policy = |spec: Value| json!({"apiVersion": "nvidia.com/v1", "kind": "ClusterPolicy", "metadata": {"name": "p"}, "spec": spec});
    let mut spec = json!({"driver": driver, "sandboxWorkloads": {"enabled": true}});
    match kind {
        "NVIDIADriver" => {
            let mut spec = driver;
            spec["nodeSelector"] = json!({"a": "b"});
            set(&mut spec, path, value);
            let driver =
                json!({"apiVersion": "nvidia.com/v1alpha1", "kind": kind, "metadata": {"name": "d"}, "spec": spec});
            Objects::of(vec![policy(json!({"driver": {"useNvidiaDriverCRD": true}})), driver])
        }
        "ClusterPolicy" => {
            set(&mut spec, path, value);
            Objects::of(vec![policy(spec)])
        }
        _ => {
            set(&mut spec, path, value);
            Objects::of_values(spec.as_object().unwrap().clone())
        }
    }
}

fn set(object: &mut Value, path: &str, value: &Value) {
    let Some(name) = path.split('.').next().filter(|name| !name.is_empty()) else {
        *object = value.clone();
        return;
    };
    let rest = path[name.len()..].trim_start_matches('.');
    match name.strip_suffix("[]") {
        _ if name == "*" => set(&mut object["sample"], rest, value),
        Some(list) => {
            object[list] = json!([{}]);
            set(&mut object[list][0], rest, value);
        }
        None => set(&mut object[name], rest, value),
    }
}

fn samples(path: &str, kind: &str) -> Vec<Value> {
    match (path, kind) {
        (_, "boolean") => vec![true.into(), false.into()],
        (_, "integer" | "number") => vec![7.into()],
        (_, "object") => vec![json!({"sample": "a"})],
        ("driver.version" | "version", _) => vec!["590.1.1".into()],
        (_, "any") => vec!["sample".into(), json!({"name": "sample"})],
        _ => vec!["sample".into()],
    }
}

/// Returns whether a value at the path changes the policy, or a remark names it.
fn is_accounted_for(kind: &str, path: &str, value: &Value) -> bool {
    let shown = path.split("[]").next().and_then(|path| path.split(".*").next()).unwrap_or_default();
    let covers = |field: &String| {
        field == shown
            || field.ends_with(&format!(" {shown}"))
            || field.starts_with(&format!("{shown}."))
            || shown.starts_with(&format!("{field}."))
    };
    let remarks = |imported: &Imported| -> BTreeSet<String> {
        let of_field = imported.remarks.iter().filter(|remark| remark.fields.iter().any(covers));
        of_field.map(|remark| format!("{remark:?}")).collect()
    };
    let (without, with): (Imported, Imported) = (of(with(kind, "none", &Value::Null)), of(with(kind, path, value)));
    let policy = |imported: &Imported| -> ClusterGpuPolicySpec { imported.policy.clone() };
    policy(&without) != policy(&with) || remarks(&without) != remarks(&with)
}

#[test]
fn every_field_becomes_something_or_is_remarked() {
    let fields: Vec<(&str, &str, &str)> = FIELDS
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (path, of_type) = line.split_once(' ').unwrap();
            let (kind, path) = path.split_once('.').unwrap();
            (kind, path, of_type)
        })
        .collect();
    assert!(fields.len() > 700);
    let in_table = |kind: &str, path: &str| {
        let of_driver = kind == "NVIDIADriver" && !path.starts_with("gds.") && !path.starts_with("gdrcopy.");
        let path = if of_driver { format!("driver.{path}") } else { path.replace("gpuPodDeletion", "podDeletion") };
        let path = path.replace("[]", "");
        fields::position(&path).map(|position| (position, path))
    };
    let mut lost = Vec::new();
    let mut used = BTreeSet::new();
    for (kind, path, of_type) in fields {
        let Some((position, in_table)) = in_table(kind, path) else {
            lost.push(format!("{kind}.{path} is not in the table"));
            continue;
        };
        let longest =
            fields::FIELDS[position].paths.iter().filter(|of| in_table.starts_with(**of)).max_by_key(|of| of.len());
        used.extend(longest.copied());
        let is_of_chart =
            format!("{kind}.{path}") == IMPLIED || kind == "Values" && OF_CHART.iter().any(|of| path.starts_with(of));
        if !is_of_chart && !samples(path, of_type).iter().any(|value| is_accounted_for(kind, path, value)) {
            lost.push(format!("{kind}.{path} is dropped"));
        }
    }
    assert!(lost.is_empty(), "{lost:#?}");
    let unused: Vec<_> =
        fields::FIELDS.iter().flat_map(|field| field.paths).filter(|path| !used.contains(*path)).collect();
    assert!(unused.is_empty(), "no field of NVIDIA's operator has these paths: {unused:?}");
}
