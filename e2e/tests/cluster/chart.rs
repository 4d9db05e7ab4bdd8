//! The chart: the values that it rejects and with which messages, and the rules that its objects must follow.

mod dra;
mod monitoring;
mod pods;
mod release;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use cluster_client::handle::Cluster;
use gpu_operator_crd::policy::Stage;
use serde_json::{Value, json};

/// Values with which the chart renders all of its objects.
pub(super) const EVERYTHING: [&str; 13] = [
    "image.repository=example.com/x",
    "metrics.service.enabled=true",
    "monitoring.podMonitor.enabled=true",
    "monitoring.prometheusRule.enabled=true",
    "monitoring.dashboard.enabled=true",
    "resourceQuota.enabled=true",
    "networkPolicy.enabled=true",
    "admission.allowedRegistries[0]=example.com",
    "admission.requireDigests=true",
    "dra.enabled=true",
    "image.digests.probe=sha256:1111111111111111111111111111111111111111111111111111111111111111",
    "extraObjects[0].apiVersion=v1,extraObjects[0].kind=ConfigMap,extraObjects[0].metadata.name=extra,\
     extraObjects[0].metadata.namespace=gpu-operator,extraObjects[0].metadata.labels.team=ml",
    // Mounts need a volume.
    "operator.extraVolumes[0].name=a",
];

pub(super) fn cluster() -> Cluster {
    tokio::runtime::Runtime::new().expect("a runtime").block_on(Cluster::connect()).expect("a cluster")
}

pub(super) fn template(cluster: &Cluster, set: &[&str]) -> Result<String> {
    let args: Vec<&str> = set.iter().flat_map(|value| ["--set", value]).collect();
    render(cluster, &args)
}

pub(super) fn render(cluster: &Cluster, args: &[&str]) -> Result<String> {
    let chart = cluster.chart().display().to_string();
    cluster.helm(&[&["template", cluster.release(), &chart, "--namespace", cluster.namespace()], args].concat())
}

pub(super) fn documents(yaml: &str) -> Result<Vec<Value>> {
    let documents = serde_yaml::Deserializer::from_str(yaml).map(serde::Deserialize::deserialize);
    let documents: Vec<Value> = documents.collect::<Result<_, serde_yaml::Error>>()?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

#[test]
fn without_a_repository_the_error_says_how_to_build_and_push() {
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
        let [operator, probe] = ["gpu-operator", "nvml-probe"].map(|name| format!("{repository}/{name}:0.2.0"));
        let expected = [operator.clone(), operator.clone(), operator, probe.clone(), probe.clone(), probe];
        assert_eq!(found, expected, "operator, test, hook, probe, detector and gates with {set}");
    }
}

#[test]
fn pull_secrets_of_parent_charts_are_used_by_all_pods() {
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
fn common_labels_are_on_all_objects_and_pods_and_select_none() {
    let labels = "commonLabels.team=ml,operator.podLabels.tier=a,probe.podLabels.tier=b,detector.podLabels.tier=b";
    let set = [&EVERYTHING[..], &[labels]].concat();
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
fn the_chart_fits_into_the_namespace_of_nvidias_operator() {
    // The release of NVIDIA's documentation, and the names of the objects of its chart and operator, versions 25 and 26.
    const NVIDIA_RELEASE: &str = "gpu-operator";
    const CHART: [&str; 14] = [
        "gpu-operator",
        "gpu-operator-upgrade-crd",
        "gpu-operator-upgrade-crd-hook-sa",
        "gpu-operator-upgrade-crd-hook-role",
        "gpu-operator-upgrade-crd-hook-binding",
        "gpu-operator-cleanup-crd",
        "gpu-operator-cleanup-gpucluster",
        "cluster-policy",
        "restricted-readonly",
        "clusterpolicies.nvidia.com",
        "gpuclusters.nvidia.com",
        "nvidiadrivers.nvidia.com",
        "computedomains.resource.nvidia.com",
        "computedomaincliques.resource.nvidia.com",
    ];
    const OPERANDS: [&str; 16] = [
        "nvidia-driver",
        "nvidia-container-toolkit",
        "nvidia-device-plugin",
        "nvidia-device-plugin-mps-control-daemon",
        "nvidia-operator-validator",
        "nvidia-mig-manager",
        "nvidia-dcgm",
        "nvidia-dcgm-exporter",
        "nvidia-dcgm-exporter-read-pods",
        "nvidia-node-status-exporter",
        "nvidia-gpu-feature-discovery",
        "gpu-feature-discovery",
        "nvidia-gpu-operator-metrics",
        "default-mig-parted-config",
        "default-vgpu-devices-config",
        "default-gpu-clients",
    ];
    const POD: [(&str, &str); 3] = [
        ("app", "gpu-operator"),
        ("app.kubernetes.io/name", "gpu-operator"),
        ("app.kubernetes.io/component", "gpu-operator"),
    ];
    let cluster = cluster();
    assert_ne!(cluster.release(), NVIDIA_RELEASE);
    let rendered = documents(&template(&cluster, &EVERYTHING).expect("a chart")).expect("YAML");
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
        "image.repositories.operator=gpu-operator",
        "image.repositories.probe=example.com/x/nvml-probe:1",
        "namespaceOverride=GPU",
        "operator.extraArgs=--a",
        "operator.extraVolumes[0].emptyDir.medium=Memory",
        "operator.extraVolumeMounts[0].name=a",
        "operator.podSecurityContext.seccompProfile.type=Default",
        "probe.securityContext.privileged=false",
        "operator.podDisruptionBudget.maxUnavailable=half",
        "monitoring.podMonitor.scrapeTimeout=5",
        "probe.interval=30",
        "extraEnv[0].name=RUST_LOG",
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
        "admission.allowedRegistries[0]=nvidia",
        "admission.allowedRegistries[0]=https://nvcr.io",
        "admission.allowedRegistries[0]=nvcr.io/",
        "admission.requireDigests=true",
        "dra.enable=true",
        "dra.deviceClass=gpu.nvidia.com",
        "networkPolicy.from[0].name=a",
        "networkPolicy.egress[0].podSelector.matchLabels.a=b",
    ] {
        assert!(template(&cluster, &["image.repository=example.com/x", wrong]).is_err(), "{wrong} is accepted");
    }
    assert!(template(&cluster, &["image.repository=example.com/x"]).is_ok());
}

#[test]
fn the_operator_watches_every_admission_policy_of_the_chart() {
    let cluster = cluster();
    let renamed = [&EVERYTHING[..], &["fullnameOverride=other"]].concat();
    for (set, expected) in [(&["image.repository=example.com/x"][..], 2), (&EVERYTHING, 4), (&renamed, 4)] {
        let rendered = documents(&template(&cluster, set).expect("a chart")).expect("YAML");
        let of_kind = |kind: &'static str| rendered.iter().filter(move |document| document["kind"] == kind);
        let names = |kind| -> BTreeSet<&str> {
            of_kind(kind).map(|object| object["metadata"]["name"].as_str().expect("a name")).collect()
        };
        let policies = names("ValidatingAdmissionPolicy");
        assert_eq!((policies.len(), &policies), (expected, &names("ValidatingAdmissionPolicyBinding")));
        let pods = of_kind("Deployment").map(|object| &object["spec"]["template"]["spec"]);
        let mut checked = 0;
        for pod in pods {
            let args = pod["containers"][0]["args"].as_array().expect("arguments");
            let pairs = args.windows(2).filter(|pair| pair[0] == "--admission-policy");
            assert_eq!(pairs.filter_map(|pair| pair[1].as_str()).collect::<BTreeSet<_>>(), policies);
            checked += 1;
        }
        // Users of kubectl gpu-fleet list all of them.
        let of_chart = |role: &&Value| !role["metadata"]["name"].as_str().is_some_and(|name| name.ends_with("-cli"));
        let accounts = of_kind("ClusterRole").filter(of_chart);
        let rules = accounts.flat_map(|role| role["rules"].as_array().into_iter().flatten());
        for rule in rules.filter(|rule| rule["apiGroups"] == json!(["admissionregistration.k8s.io"])) {
            let readable = rule["resourceNames"].as_array().expect("names").iter().filter_map(Value::as_str);
            assert_eq!(readable.collect::<BTreeSet<_>>(), policies);
            checked += 1;
        }
        assert_eq!(checked, 2, "the operator and the role");
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
fn the_quota_admits_the_pods_of_all_stages_on_all_nodes() {
    let set = "image.repository=x,resourceQuota.enabled=true,resourceQuota.nodes=300";
    let rendered = documents(&template(&cluster(), &[set]).expect("a chart")).expect("YAML");
    let quota = rendered.iter().find(|document| document["kind"] == "ResourceQuota").expect("a quota");
    let pods: usize = quota["spec"]["hard"]["pods"].as_str().and_then(|pods| pods.parse().ok()).expect("a number");
    // The probe's pod and one of each stage, and as many that are being replaced.
    assert!(pods >= 300 * 2 * (1 + Stage::ALL.len()), "{pods}");
}

#[test]
fn the_crds_in_the_chart_are_the_generated_ones() {
    let cluster = cluster();
    for (set, in_chart, kept) in
        [("crds.enabled=true", true, true), ("crds.keep=false", true, false), ("crds.enabled=false", false, false)]
    {
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
                let mut generated: Value = serde_yaml::from_str(&generated).expect("YAML");
                if kept {
                    generated["metadata"]["annotations"]["helm.sh/resource-policy"] = "keep".into();
                }
                assert_eq!(rendered["spec"], generated["spec"], "{name} with {set}");
                assert_eq!(rendered["metadata"], generated["metadata"], "{name} with {set}");
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
