//! Alerts, dashboard and docs refer only to existing metrics and existing headings.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod exposed;
mod promql;
mod promtool_tests;

use std::{collections::BTreeMap, fs, path::Path};

use exposed::Metric;
use promql::Matcher;
use serde_json::Value;

/// The label that every scrape adds.
const INSTANCE: &str = "instance";
/// The labels of all metrics of the probe, and those of its GPU metrics.
const OF_THE_PROBE: &[&str] = &["node"];
const OF_A_GPU: &[&str] = &["node", "pci_address", "uuid", "model"];

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn alerts() -> Vec<Value> {
    let file: Value = serde_yaml::from_str(&file("charts/gpu-operator/monitoring/alerts.yaml")).expect("YAML");
    let rules = file["groups"].as_array().expect("groups").iter().filter_map(|group| group["rules"].as_array());
    let rules: Vec<Value> = rules.flatten().cloned().collect();
    assert!(rules.len() > 5, "only {} alerts", rules.len());
    rules
}

/// Returns the errors in an expression, and in texts that refer to labels of its result.
fn faults(metrics: &BTreeMap<String, Metric>, expression: &str, texts: &[&str]) -> Vec<String> {
    let uses = promql::uses(expression);
    let mut faults = Vec::new();
    let mut labels = vec![INSTANCE];
    for (name, matchers) in &uses.series {
        let Some(metric) = metrics.get(name) else {
            faults.push(format!("{name} is not exposed"));
            continue;
        };
        labels.extend(metric.labels.keys().map(String::as_str));
        for Matcher { label, operator, value } in matchers {
            match metric.labels.get(label) {
                None => faults.push(format!("{name} has no label {label}")),
                Some(values) if operator.ends_with('=') && !values.contains(value) => {
                    faults.push(format!("{label} of {name} is never {value}"));
                }
                Some(_) => {}
            }
        }
    }
    let grouped = uses.by.iter().chain(&uses.matched);
    faults.extend(grouped.filter(|by| !labels.contains(&by.as_str())).map(|by| format!("no series has label {by}")));
    let left: Vec<&str> = if uses.by.is_empty() { labels } else { uses.by.iter().map(String::as_str).collect() };
    for text in texts {
        for named in named(text) {
            if !left.contains(&named) {
                faults.push(format!("the result has no label {named}"));
            }
        }
    }
    faults
}

/// Returns the labels that a text refers to, as in an alert (`{{ $labels.node }}`) or a dashboard (`{{node}}`).
fn named(text: &str) -> Vec<&str> {
    let braces = text.split("{{").skip(1).filter_map(|rest| Some(rest.split_once("}}")?.0.trim()));
    braces.filter(|word| *word != "$value").map(|word| word.strip_prefix("$labels.").unwrap_or(word)).collect()
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_else(|| panic!("no {pointer} in {value}"))
}

#[test]
fn every_alert_uses_exposed_metrics_and_is_documented() {
    let metrics = exposed::all();
    for alert in alerts() {
        let texts = [text(&alert, "/annotations/summary"), text(&alert, "/annotations/description")];
        let faults = faults(&metrics, text(&alert, "/expr"), &texts);
        assert!(faults.is_empty(), "{}: {faults:?}", alert["alert"]);
        let row = format!("| `{}` | {} |", text(&alert, "/alert"), text(&alert, "/labels/severity"));
        assert!(file("docs/operate/metrics.md").contains(&row), "{row} is not in docs/operate/metrics.md");
    }
}

#[test]
fn every_alert_links_to_an_existing_heading() {
    for alert in alerts() {
        let (path, anchor) = text(&alert, "/annotations/runbook_url").split_once('#').expect("an anchor");
        let anchors: Vec<String> = file(path).lines().filter_map(anchor_of).collect();
        assert!(anchors.iter().any(|there| there == anchor), "{}: {anchor} is not one of {anchors:?}", alert["alert"]);
    }
}

/// Returns the anchor of a heading.
fn anchor_of(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim();
    let kept = heading.chars().filter(|letter| letter.is_alphanumeric() || [' ', '-', '_'].contains(letter));
    Some(kept.collect::<String>().to_lowercase().replace(' ', "-"))
}

fn dashboard() -> Value {
    serde_json::from_str(&file("charts/gpu-operator/monitoring/gpu-fleet.json")).expect("JSON")
}

#[test]
fn every_dashboard_panel_uses_exposed_metrics() {
    let metrics = exposed::all();
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().expect("panels");
    assert!(panels.len() > 5, "only {} panels", panels.len());
    for panel in panels {
        for target in panel["targets"].as_array().expect("targets") {
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            let faults = faults(&metrics, text(target, "/expr"), &[legend]);
            assert!(faults.is_empty(), "{}: {faults:?}", panel["title"]);
        }
    }
}

#[test]
fn every_dashboard_variable_selects_by_an_exposed_label() {
    let metrics = exposed::all();
    let dashboard = dashboard();
    let panels = dashboard["panels"].to_string();
    let mut names = Vec::new();
    for variable in dashboard["templating"]["list"].as_array().expect("variables") {
        let name = text(variable, "/name");
        assert!(panels.contains(&format!("${name}\\\"")) || name == "datasource", "no panel uses {name}");
        // A series and one of its labels.
        let Some(query) = text(variable, "/query").strip_prefix("label_values(") else { continue };
        let (series, label) = query.trim_end_matches(')').rsplit_once(", ").expect("a label");
        let faults = faults(&metrics, &format!("sum by ({label}) ({series})"), &[]);
        assert!(faults.is_empty(), "{name}: {faults:?}");
        names.push(name);
    }
    assert_eq!(names, ["pool", "model", "node"]);
}

#[test]
fn the_docs_list_exactly_the_metrics_with_labels_and_unit() {
    let mut exposed = BTreeMap::new();
    for (name, metric) in exposed::all() {
        let common = match name.as_str() {
            name if name.starts_with("nvml_probe_gpu_") => OF_A_GPU,
            name if name.starts_with("nvml_probe_") => OF_THE_PROBE,
            _ => &[],
        };
        for label in common {
            assert!(metric.labels.contains_key(*label), "{name} lacks {label}");
        }
        let own = metric.labels.keys().filter(|label| !common.contains(&label.as_str()) && *label != "le");
        exposed.insert(metric.documented.clone(), (own.cloned().collect::<Vec<_>>(), metric.unit));
    }
    let mut documented: BTreeMap<String, (Vec<String>, String)> =
        file("docs/operate/metrics.md").lines().filter_map(row).collect();
    for (name, (labels, unit)) in exposed {
        let row = documented.remove(&name).unwrap_or_else(|| panic!("{name} is not in docs/operate/metrics.md"));
        assert_eq!(row.0, labels, "labels of {name}");
        if let Some(unit) = unit {
            assert_eq!(row.1, unit, "unit of {name}");
        }
    }
    assert!(documented.is_empty(), "documented but not exposed: {documented:?}");
}

/// Parses a row of the tables: metric, labels (their values in brackets), unit and meaning.
fn row(line: &str) -> Option<(String, (Vec<String>, String))> {
    let cells: Vec<&str> = line.strip_prefix("| `")?.split('|').map(str::trim).collect();
    let [name, labels, unit, meaning, ..] = cells[..] else { return None };
    if !name.starts_with("gpu_operator_") && !name.starts_with("nvml_probe_") {
        return None;
    }
    assert!(!meaning.is_empty(), "{line}");
    let outside = labels.split('(').map(|part| part.rsplit(')').next().unwrap_or_default()).collect::<String>();
    let mut labels: Vec<String> = outside.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    labels.sort();
    Some((name.trim_end_matches('`').to_owned(), (labels, unit.to_owned())))
}
