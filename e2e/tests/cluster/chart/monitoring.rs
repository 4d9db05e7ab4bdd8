//! What the chart renders for Prometheus and Grafana.

use std::collections::BTreeMap;

use gpu_operator_crd::{keys, policy::Stage};
use serde_json::{Value, json};

use super::{cluster, documents, template};

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
            "monitoring.dashboard.annotations.grafana_folder=GPUs",
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
    assert_eq!(dashboard["metadata"]["annotations"], json!({"grafana_folder": "GPUs"}));
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
    let scrape = "monitoring.serviceMonitor.scrapeTimeout=5s,monitoring.serviceMonitor.honorLabels=true";
    let rendered = documents(&template(&cluster(), &[set, relabel, scrape]).expect("a chart")).expect("YAML");
    let of_kind = |kind: &str| rendered.iter().filter(move |document| document["kind"] == kind).collect::<Vec<_>>();
    let spec = &of_kind("ServiceMonitor")[0]["spec"];
    let endpoint = |port: &str| {
        let relabelings = json!([{"action": "labeldrop"}]);
        json!({"port": port, "interval": "1m", "scrapeTimeout": "5s", "honorLabels": true, "relabelings": relabelings})
    };
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
