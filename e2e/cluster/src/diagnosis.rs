//! The state of the running cluster as text, for failed tests.

use std::fmt::Write;

use harness::paths::Paths;

use super::{chart::NAMESPACE, clients::kubectl};

/// The line that a test prints between its error and the state of the cluster.
pub const HEADING: &str = "--- the cluster";

/// Returns what helps to find out why something failed on these nodes: policies and the operator's log; and for each node its
/// pods, Events, status and logs.
pub fn diagnosis(paths: &Paths, nodes: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    let mut add = |args: &[&str]| {
        let output = kubectl(paths, args).unwrap_or_else(|error| format!("{error:#}"));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "--- kubectl {}\n{}", args.join(" "), output.trim_end());
    };
    add(&["get", "nodes", "-o", "wide"]);
    add(&["get", "daemonsets", "-A", "-o", "wide"]);
    add(&["get", "clustergpupolicies", "-o", "yaml"]);
    add(&["logs", "-n", NAMESPACE, "deployment/nodestack-gpu-operator", "--tail=100"]);
    for node in nodes {
        let on_node = format!("--field-selector=spec.nodeName={node}");
        add(&["get", "gpunode", &node, "-o", "yaml"]);
        add(&["get", "events", "-A", &format!("--field-selector=involvedObject.name={node}")]);
        add(&["get", "pods", "-A", "-o", "wide", &on_node]);
        let pods = kubectl(paths, &["get", "pods", "-n", NAMESPACE, "-o", "name", &on_node]).unwrap_or_default();
        for pod in pods.lines() {
            add(&["describe", "-n", NAMESPACE, pod]);
            add(&["logs", "-n", NAMESPACE, pod, "--all-containers", "--prefix", "--tail=60"]);
        }
    }
    text
}
