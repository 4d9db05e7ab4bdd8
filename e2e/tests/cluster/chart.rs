//! The chart: the values that it rejects and with which messages, and the rules that its objects must follow.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use e2e::Cluster;
use futures::{StreamExt, stream};
use gpu_operator_crd::{keys, policy::Stage};
use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams, ValidationDirective},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

/// Values with which the chart renders all of its objects.
const EVERYTHING: [&str; 9] = [
    "image.repository=example.com/x",
    "metrics.service.enabled=true",
    "monitoring.podMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboard.enabled=true",
    "resourceQuota.enabled=true",
    "gkeHealthMonitoring=true",
    "networkPolicy.enabled=true",
    "extraObjects[0].apiVersion=v1,extraObjects[0].kind=ConfigMap,extraObjects[0].metadata.name=extra,\
     extraObjects[0].metadata.namespace=gpu-operator,extraObjects[0].metadata.labels.team=ml",
];

fn cluster() -> Cluster {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(Cluster::connect()).expect("a cluster")
}

fn template(cluster: &Cluster, set: &[&str]) -> Result<String> {
    let args: Vec<&str> = set.iter().flat_map(|value| ["--set", value]).collect();
    render(cluster, &args)
}

fn render(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let chart = cluster.chart().display().to_string();
    cluster.helm(&[&["template", "gpu-operator", &chart, "--namespace", "gpu-operator"], args].concat())
}

fn documents(yaml: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(yaml).map(serde::Deserialize::deserialize);
    let documents: Vec<Value> = documents.collect::<Result<_, serde_yaml::Error>>()?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

#[test]
fn without_a_repository_the_error_describes_how_to_build_and_push() {
    let error = format!("{:#}", template(&cluster(), &[]).expect_err("rejected"));
    for words in ["for IMAGE in", "--target", "docker push", "--set image.repository="] {
        assert!(error.contains(words), "{words}: {error}");
    }
}

#[test]
fn every_image_of_the_chart_comes_from_the_given_registry() {
    fn images(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("image").and_then(Value::as_str).map(str::to_owned));
                for field in fields.values() {
                    images(field, found);
                }
            }
            Value::Array(items) => {
                // The operator gets the image of the gates as an argument.
                let argument = items.iter().skip_while(|item| **item != "--probe-image").nth(1);
                found.extend(argument.and_then(Value::as_str).map(str::to_owned));
                for item in items {
                    images(item, found);
                }
            }
            _ => {}
        }
    }
    let cluster = cluster();
    for (set, repository) in [
        ("image.repository=a.example.com/x", "a.example.com/x"),
        ("global.imageRegistry=b.example.com:5000", "b.example.com:5000"),
        ("global.imageRegistry=b.example.com,image.repository=a.example.com/x", "b.example.com/x"),
        ("global.imageRegistry=b.example.com,image.repository=localhost", "b.example.com"),
        ("global.imageRegistry=b.example.com/y,image.repository=x/gpu", "b.example.com/y/x/gpu"),
    ] {
        let mut found = Vec::new();
        for document in documents(&template(&cluster, &[set]).expect("a chart")).expect("YAML") {
            if document["kind"] != "CustomResourceDefinition" {
                images(&document, &mut found);
            }
        }
        found.sort();
        let [operator, probe] = ["gpu-operator", "nvml-probe"].map(|name| format!("{repository}/{name}:0.1.0"));
        let expected = [operator.clone(), operator, probe.clone(), probe];
        assert_eq!(found, expected, "operator, test, probe and gates with {set}");
    }
}

#[test]
fn pull_secrets_of_parent_charts_are_used_by_all_pods_of_the_chart() {
    let set =
        "image.repository=x,image.pullSecrets[0].name=a,global.imagePullSecrets[0]=b,global.imagePullSecrets[1]=a";
    let rendered = documents(&template(&cluster(), &[set]).expect("a chart")).expect("YAML");
    for kind in ["Deployment", "DaemonSet"] {
        let workload = rendered.iter().find(|document| document["kind"] == kind).expect(kind);
        let pod = &workload["spec"]["template"]["spec"];
        assert_eq!(pod["imagePullSecrets"], json!([{"name": "b"}, {"name": "a"}]), "{kind}");
        // Those of the gates, which the operator creates.
        let args = pod["containers"][0]["args"].to_string();
        let given = ["b", "a"].map(|name| args.contains(&format!(r#""--image-pull-secret","{name}""#)));
        assert_eq!(given, [kind == "Deployment"; 2], "{args}");
    }
}

#[test]
fn common_labels_are_those_of_all_objects_and_pods_and_select_none() {
    let set = [&EVERYTHING[..], &["commonLabels.team=ml,operator.podLabels.tier=a,probe.podLabels.tier=b"]].concat();
    for document in documents(&template(&cluster(), &set).expect("a chart")).expect("YAML") {
        assert_eq!(document["metadata"]["labels"]["team"], "ml", "{} {}", document["kind"], document["metadata"]);
        let pod = &document["spec"]["template"]["metadata"]["labels"];
        if pod.is_object() {
            let tier = if document["kind"] == "DaemonSet" { "b" } else { "a" };
            assert_eq!((&pod["team"], &pod["tier"]), (&json!("ml"), &json!(tier)));
        }
        let selector = document["spec"]["selector"].to_string();
        assert!(!selector.contains("team") && !selector.contains("tier"), "{selector}");
    }
}

#[test]
fn the_chart_can_be_installed_into_the_namespace_of_nvidias_operator() {
    // The names of the objects of NVIDIA's chart and operator, versions 25 and 26, and the labels of its operator's pod.
    const CHART: [&str; 7] = [
        "gpu-operator",
        "gpu-operator-upgrade-crd",
        "gpu-operator-upgrade-crd-hook-sa",
        "gpu-operator-upgrade-crd-hook-role",
        "gpu-operator-upgrade-crd-hook-binding",
        "clusterpolicies.nvidia.com",
        "nvidiadrivers.nvidia.com",
    ];
    const OPERANDS: [&str; 13] = [
        "nvidia-driver",
        "nvidia-container-toolkit",
        "nvidia-device-plugin",
        "nvidia-device-plugin-mps-control-daemon",
        "nvidia-operator-validator",
        "nvidia-mig-manager",
        "nvidia-dcgm",
        "nvidia-dcgm-exporter",
        "nvidia-node-status-exporter",
        "nvidia-gpu-feature-discovery",
        "gpu-feature-discovery",
        "default-mig-parted-config",
        "default-gpu-clients",
    ];
    const POD: [(&str, &str); 3] = [
        ("app", "gpu-operator"),
        ("app.kubernetes.io/name", "gpu-operator"),
        ("app.kubernetes.io/component", "gpu-operator"),
    ];
    let rendered = documents(&template(&cluster(), &EVERYTHING).expect("a chart")).expect("YAML");
    let mut names = BTreeSet::new();
    for document in &rendered {
        let (kind, name) = (&document["kind"], document["metadata"]["name"].as_str().expect("a name"));
        assert!(names.insert((kind.to_string(), name)), "{kind} {name} is rendered twice");
        let base = name.strip_suffix("-daemonset").unwrap_or(name);
        assert!(!CHART.contains(&base) && !OPERANDS.contains(&base), "{kind} {name} is NVIDIA's");
        // Whatever selects pods does not select the pod of NVIDIA's operator.
        let selector = &document["spec"]["selector"];
        let labels = selector.get("matchLabels").unwrap_or(selector).as_object();
        let of_nvidia = |(key, value): (&String, &Value)| POD.iter().any(|(own, label)| key == own && value == label);
        assert!(
            labels.is_none_or(|labels| labels.is_empty() || !labels.iter().all(of_nvidia)),
            "{kind} {name}: {selector}"
        );
        let values = selector.pointer("/matchExpressions/0/values").and_then(Value::as_array);
        assert!(values.is_none_or(|values| values.iter().all(|value| value != "gpu-operator")), "{kind} {name}");
    }
    assert!(names.len() > 20, "{names:?}");
}

#[test]
fn invalid_values_are_rejected() {
    let cluster = cluster();
    for wrong in [
        "operator.lisenAddress=0.0.0.0:1",
        "image.pullPolicy=always",
        "image.repository=https://example.com/x",
        "image.repository=example.com/x/",
        "image.digests.probe=sha256:1",
        "probe.interval=30",
        "extraEnv[0].name=RUST_LOG",
        "podDiagnosis=sometimes",
        "gkeHealthMonitoring=yes please",
        "operator.listenAddress=127.0.0.1:8080",
        "probe.listenAddress=127.0.0.1:9484",
        "probe.listenAddress=9484",
        "monitoring.prometheusRule.runbookUrl=example.com",
        "fullnameOverride=GPU",
        "monitoring.prometheusRule.enabled=true",
        "monitoring.podMonitor.enabled=true,monitoring.serviceMonitor.enabled=true",
        "monitoring.serviceMonitor.enabled=true,probe.listenAddress=127.0.0.1:9484,hostNetwork=true",
        "operator.podLabels.gpu\\.nodestack\\.dev/stage=driver",
        "image.pullSecrets[0].nam=registry",
        "global.imageRegistry=https://example.com",
        "crds.enable=false",
        "extraObjects[0].name=a",
        "operator.resources.requests.cpu=half",
        "operator.affinity.podAffinity.required[0].topologyKey=a",
        "operator.topologySpreadConstraints[0].topologyKey=a",
        "networkPolicy.from[0].name=a",
        "networkPolicy.egress[0].podSelector.matchLabels.a=b",
    ] {
        assert!(template(&cluster, &["image.repository=example.com/x", wrong]).is_err(), "{wrong} is accepted");
    }
    assert!(template(&cluster, &["image.repository=example.com/x"]).is_ok());
}

#[test]
fn pod_diagnosis_false_sets_the_flag_and_removes_the_permission() {
    let cluster = cluster();
    for (wanted, set) in [(true, "podDiagnosis=true"), (false, "podDiagnosis=false")] {
        let rendered = template(&cluster, &["image.repository=example.com/x", set]).expect("a chart");
        let rendered = documents(&rendered).expect("YAML");
        let of = |kind: &str| {
            let named = |document: &&Value| document["metadata"]["name"] == "nodestack-gpu-operator";
            rendered.iter().filter(|document| document["kind"] == kind).find(named).expect(kind)
        };
        let args = of("Deployment")["spec"]["template"]["spec"]["containers"][0]["args"].to_string();
        assert_eq!(args.contains("--no-pod-diagnosis"), !wanted, "{args}");
        let rules = of("ClusterRole")["rules"].as_array().expect("rules");
        let reads_events =
            rules.iter().any(|rule| rule["apiGroups"] == json!([""]) && rule["resources"] == json!(["events"]));
        assert_eq!(reads_events, wanted);
    }
}

#[test]
fn the_permissions_of_googles_device_plugin_exist_only_if_requested() {
    let cluster = cluster();
    for (wanted, set) in [(false, "podDiagnosis=true"), (true, "gkeHealthMonitoring=true")] {
        let rendered = template(&cluster, &["image.repository=example.com/x", set]).expect("a chart");
        let rendered = documents(&rendered).expect("YAML");
        let made = |kind: &str| {
            let of_kind = rendered.iter().filter(|document| document["kind"] == kind);
            of_kind.filter(|document| document["metadata"]["name"] == "nodestack-gke-device-plugin").count()
        };
        for kind in ["ServiceAccount", "ClusterRole", "ClusterRoleBinding"] {
            assert_eq!(made(kind), usize::from(wanted), "{kind} with {set}");
        }
    }
}

#[test]
fn only_the_role_that_reads_is_part_of_the_clusters_roles() {
    let rendered = documents(&template(&cluster(), &EVERYTHING).expect("a chart")).expect("YAML");
    let role = |name: &str| rendered.iter().find(|document| document["metadata"]["name"] == name).expect("a role");
    let aggregated = |role: &Value| role["metadata"]["labels"].to_string().contains("aggregate-to");
    let verbs = |role: &Value| role["rules"][0]["verbs"].clone();
    let view = role("nodestack-gpu-operator-view");
    assert_eq!((aggregated(view), verbs(view)), (true, json!(["get", "list", "watch"])));
    assert_eq!(view["rules"].as_array().map(Vec::len), Some(1));
    let edit = role("nodestack-gpu-operator-edit");
    assert!(!aggregated(edit) && verbs(edit).to_string().contains("patch"), "{edit}");
}

#[test]
fn alerts_without_a_location_of_the_docs_have_no_links() {
    let enabled = ["metrics.service.enabled=true", "monitoring.prometheusRule.enabled=true"];
    let set = [&["image.repository=example.com/x"], &enabled[..]].concat();
    let rendered = template(&cluster(), &set).expect("a chart");
    let rules = documents(&rendered).expect("YAML").into_iter().find(|document| document["kind"] == "PrometheusRule");
    let rules = rules.expect("rules")["spec"]["groups"][0]["rules"].as_array().cloned().expect("rules");
    assert!(rules.len() > 5, "{rules:?}");
    for rule in rules {
        let annotations = &rule["annotations"];
        assert!(annotations["summary"].is_string() && annotations["runbook_url"].is_null(), "{rule}");
    }
}

#[test]
fn alerts_and_dashboard_are_rendered_unchanged_from_their_files() {
    let cluster = cluster();
    let file = |name: &str| std::fs::read_to_string(cluster.chart().join("monitoring").join(name)).expect("a file");
    let rendered = template(
        &cluster,
        &[
            "image.repository=example.com/x",
            "monitoring.podMonitor.enabled=true",
            "monitoring.prometheusRule.enabled=true",
            "monitoring.prometheusRule.labels.release=prometheus",
            "monitoring.prometheusRule.runbookUrl=https://example.com/",
            "monitoring.dashboard.enabled=true",
        ],
    );
    let rendered = documents(&rendered.expect("a chart")).expect("YAML");
    let of_kind = |kind: &str| rendered.iter().find(|document| document["kind"] == kind).expect(kind);
    let rule = of_kind("PrometheusRule");
    let alerts = file("alerts.yaml").replace("runbook_url: ", "runbook_url: https://example.com/");
    let alerts: Value = serde_yaml::from_str(&alerts).expect("YAML");
    assert_eq!(rule["spec"], alerts);
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let dashboard = of_kind("ConfigMap");
    assert_eq!(dashboard["metadata"]["labels"]["grafana_dashboard"], "1");
    let text = dashboard["data"]["gpu-fleet.json"].as_str().expect("a dashboard");
    assert_eq!(text.trim_end(), file("gpu-fleet.json").trim_end());
    let monitors = rendered.iter().filter(|document| document["kind"] == "PodMonitor");
    let monitors: BTreeMap<_, _> =
        monitors.filter_map(|monitor| Some((monitor["metadata"]["name"].as_str()?, &monitor["spec"]))).collect();
    let endpoints = |name: &str| &monitors[name]["podMetricsEndpoints"];
    assert_eq!(endpoints("nodestack-gpu-operator"), &json!([{"port": "http"}, {"port": "metrics"}]));
    // The labels of the plugin's pods, and the port of Google's.
    assert_eq!(endpoints("nodestack-gpu-operator-device-plugin"), &json!([{"port": "metrics"}]));
    let selector = &monitors["nodestack-gpu-operator-device-plugin"]["selector"]["matchLabels"];
    let labels = [(keys::MANAGED_BY, keys::MANAGER), (keys::STAGE, Stage::DevicePlugin.as_str())];
    assert_eq!(selector, &json!(BTreeMap::from(labels)));
}

#[test]
fn a_service_monitor_scrapes_the_services_of_operator_and_probe() {
    let set = "image.repository=x,monitoring.serviceMonitor.enabled=true,monitoring.serviceMonitor.interval=1m";
    let relabel = "monitoring.serviceMonitor.relabelings[0].action=labeldrop";
    let rendered = documents(&template(&cluster(), &[set, relabel]).expect("a chart")).expect("YAML");
    let of_kind = |kind: &str| rendered.iter().filter(move |document| document["kind"] == kind).collect::<Vec<_>>();
    let spec = &of_kind("ServiceMonitor")[0]["spec"];
    let endpoint = |port: &str| json!({"port": port, "interval": "1m", "relabelings": [{"action": "labeldrop"}]});
    assert_eq!(spec["endpoints"], json!([endpoint("http"), endpoint("metrics")]));
    let selected = spec["selector"]["matchExpressions"][0]["values"].as_array().expect("values");
    let services = of_kind("Service");
    assert_eq!(services.len(), 2);
    for service in services {
        assert!(selected.contains(&service["metadata"]["labels"]["app.kubernetes.io/name"]), "{service}");
        let port = &service["spec"]["ports"][0]["name"];
        assert!(port == "http" || port == "metrics", "{service}");
    }
    // Google's device plugin has no Service.
    assert_eq!(of_kind("PodMonitor").len(), 1);
}

#[test]
fn the_quota_admits_the_pods_of_all_stages_on_the_given_number_of_nodes() {
    let set = "image.repository=x,resourceQuota.enabled=true,resourceQuota.nodes=300";
    let rendered = documents(&template(&cluster(), &[set]).expect("a chart")).expect("YAML");
    let quota = rendered.iter().find(|document| document["kind"] == "ResourceQuota").expect("a quota");
    let pods: usize = quota["spec"]["hard"]["pods"].as_str().and_then(|pods| pods.parse().ok()).expect("a number");
    // The probe's pod and one of each stage, and as many that are being replaced.
    assert!(pods >= 300 * 2 * (1 + Stage::ALL.len()), "{pods}");
}

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
            json!(["a", "100Mi", "1m", "/a", "0.0.0.0:81", digest, "Always", "OnDelete", "11%", "https://a/"])
        }
        Value::Array(_) => json!([
            [],
            [{"name": "a"}],
            [{"key": "a"}],
            [{"podSelector": {}}],
            [{"ports": [{"port": 81}]}],
            [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}],
            [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}],
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

#[test]
fn the_crds_in_the_chart_are_the_generated_ones() {
    let cluster = cluster();
    for (set, in_chart, annotations) in [
        ("crds.enabled=true", true, json!({"helm.sh/resource-policy": "keep"})),
        ("crds.keep=false", true, Value::Null),
        ("crds.enabled=false", false, Value::Null),
    ] {
        let rendered = template(&cluster, &["image.repository=example.com/x", set]).expect("a chart");
        let crds: BTreeMap<_, _> = documents(&rendered)
            .expect("YAML")
            .into_iter()
            .filter(|document| document["kind"] == "CustomResourceDefinition")
            .map(|document| (document["metadata"]["name"].as_str().unwrap_or_default().to_owned(), document))
            .collect();
        for (_, crd) in gpu_operator_crd::crds() {
            let name = crd.metadata.name.clone().expect("a name");
            assert_eq!(crds.contains_key(&name), in_chart, "{name} with {set}");
            if let Some(rendered) = crds.get(&name) {
                let generated = gpu_operator_crd::crd_yaml(&crd).expect("YAML");
                let generated: Value = serde_yaml::from_str(&generated).expect("YAML");
                assert_eq!(rendered["spec"], generated["spec"], "{name} with {set}");
                assert_eq!(rendered["metadata"]["annotations"], annotations, "{name} with {set}");
            }
        }
    }
}

#[test]
fn the_operator_runs_in_a_restricted_namespace() {
    let cluster = cluster();
    let namespace = "restricted-test";
    let outcome = (|| {
        cluster.kubectl(&["create", "namespace", namespace])?;
        cluster.kubectl(&["create", "serviceaccount", "nodestack-gpu-operator", "-n", namespace])?;
        cluster.kubectl(&["label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted"])?;
        let dry_run = |set: &[&str]| -> Result<String> {
            let all = documents(&template(&cluster, set)?)?;
            let deployment = all.iter().find(|document| document["kind"] == "Deployment").expect("a Deployment");
            let mut pod = deployment["spec"]["template"].clone();
            pod["apiVersion"] = "v1".into();
            pod["kind"] = "Pod".into();
            pod["metadata"]["name"] = "operator".into();
            let file = std::env::temp_dir().join(format!("restricted-{}.json", std::process::id()));
            std::fs::write(&file, pod.to_string())?;
            let answer =
                cluster.kubectl(&["create", "--dry-run=server", "-n", namespace, "-f", &file.display().to_string()]);
            std::fs::remove_file(&file)?;
            answer
        };
        dry_run(&["image.repository=example.com/x"])?;
        let rejected = dry_run(&["image.repository=example.com/x", "hostNetwork=true"]);
        ensure!(rejected.is_err(), "the namespace does not enforce the restricted level");
        Ok(())
    })();
    let _ = cluster.kubectl(&["delete", "namespace", namespace, "--wait=false"]);
    outcome.expect("admitted");
}
