//! The tests of the alerts for promtool cover every alert, with series that are exposed. promtool itself runs in the tests
//! of package e2e.

use serde_json::Value;

use crate::{INSTANCE, alerts, exposed, file, promql, text};

/// Returns the groups of series, each with its expectations.
fn groups() -> Vec<Value> {
    let file: Value = serde_yaml::from_str(&file("e2e/checks/tests/monitoring/alerts.test.yaml")).expect("YAML");
    file["tests"].as_array().expect("tests").clone()
}

#[test]
fn every_alert_is_tested_to_fire_and_not_to_fire() {
    let groups = groups();
    let tests = groups.iter().filter_map(|group| group["promql_expr_test"].as_array()).flatten();
    let tests: Vec<&Value> = tests.collect();
    for alert in alerts() {
        let alert = text(&alert, "/alert");
        let fires = format!("ALERTS{{alertname=\"{alert}\", alertstate=\"firing\"}}");
        let of_alert = tests.iter().filter(|test| text(test, "/expr").contains(&fires));
        let (silent, firing): (Vec<&Value>, Vec<&Value>) =
            of_alert.partition(|test| test["exp_samples"].as_array().is_none_or(Vec::is_empty));
        assert!(!silent.is_empty() && !firing.is_empty(), "{alert}: {silent:?}, {firing:?}");
    }
}

#[test]
fn the_inputs_are_exposed_series() {
    let metrics = exposed::all();
    for group in groups() {
        for input in group["input_series"].as_array().expect("series") {
            let uses = promql::uses(text(input, "/series"));
            let [(name, labels)] = &uses.series[..] else { panic!("{input}") };
            let metric = metrics.get(name).unwrap_or_else(|| panic!("{name} is not exposed"));
            let mut expected: Vec<&str> = metric.labels.keys().map(String::as_str).chain([INSTANCE]).collect();
            let mut given: Vec<&str> = labels.iter().map(|matcher| matcher.label.as_str()).collect();
            expected.sort_unstable();
            given.sort_unstable();
            assert_eq!(given, expected, "labels of {name}");
        }
    }
}
