//! The explanation of a pod as text.

use std::collections::BTreeMap;

use k8s_openapi::jiff::Timestamp;

use super::pod_report::{Candidate, PodReport};
use crate::output::{Screen, Tone, age, wrap};

pub fn text(report: &PodReport, screen: Screen, now: Timestamp) -> String {
    let PodReport { namespace, pod, phase, since, findings, notes, reported, .. } = report;
    let lasted = since.as_ref().map(|since| format!(", created {} ago", age(since.0, now))).unwrap_or_default();
    let title = screen.paint(Tone::Strong, &format!("{namespace}/{pod}"));
    let mut lines = wrap(&format!("{title}: {phase}{lasted}"), "", 2);
    lines.extend(wrap(&requested(report), "  ", 2));
    lines.extend(reported.iter().flat_map(|text| wrap(text, "  ", 4)));
    for found in findings {
        let tone = if found.warning { Tone::Bad } else { Tone::Warning };
        lines.push(String::new());
        let first = format!("{} ", screen.mark(tone));
        lines.extend(wrap(&format!("{}: {}", screen.paint(Tone::Strong, found.reason), found.message), &first, 2));
        lines.extend(wrap(&found.action, "Do: ", 4));
    }
    if findings.is_empty() {
        lines.push(String::new());
        lines.extend(without_finding(report, screen));
    }
    lines.extend(nodes(report, screen));
    if !notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(notes.iter().flat_map(|note| wrap(&format!("{note}."), "Note: ", 6)));
    lines.join("\n") + "\n"
}

fn requested(report: &PodReport) -> String {
    let amounts: Vec<_> = report.requests.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
    match (amounts.is_empty(), report.claims) {
        (false, _) => format!("requests {}", amounts.join(", ")),
        (true, true) => "requests no GPU resource, but has resource claims, which may be for GPUs".to_owned(),
        (true, false) => "requests no GPU".to_owned(),
    }
}

/// Returns what is known about a pod without a mistake.
fn without_finding(report: &PodReport, screen: Screen) -> Vec<String> {
    let needs_gpus = !report.requests.is_empty() || report.claims;
    let is_running = report.phase == "Running";
    let (tone, text) = match (&report.node, needs_gpus) {
        _ if matches!(report.phase.as_str(), "Succeeded" | "Failed") => {
            (Tone::Quiet, "The pod has ended and uses no GPU.".to_owned())
        }
        (_, false) => {
            (Tone::Quiet, "It gets no GPU. If it needs one, set limits: {nvidia.com/gpu: 1} in a container.".to_owned())
        }
        (Some(node), true) if is_running && report.devices.is_empty() => {
            let namespace = &report.namespace;
            let list = format!("kubectl -n {namespace} exec {} -- nvidia-smi -L", report.pod);
            (Tone::Good, format!("It runs on node {node}. Kubelet does not publish its GPUs; to list them: {list}"))
        }
        (Some(node), true) if is_running => {
            (Tone::Good, format!("It runs on node {node} with {}.", report.devices.join(", ")))
        }
        (Some(node), true) => (Tone::Warning, format!("No mistake is found. It is assigned to node {node} and is starting.")),
        (None, true) if report.nodes.iter().any(|node| node.offers_enough && node.obstacle.is_empty()) => (
            Tone::Warning,
            "No mistake is found: nodes below offer enough. If the scheduler does not place it, other pods use their GPUs.".to_owned(),
        ),
        (None, true) => (Tone::Warning, "No mistake is found, but no node can run it now.".to_owned()),
    };
    wrap(&text, &format!("{} ", screen.mark(tone)), 2)
}

fn nodes(report: &PodReport, screen: Screen) -> Vec<String> {
    let PodReport { nodes, matching_nodes, node, .. } = report;
    if nodes.is_empty() {
        return Vec::new();
    }
    let title = match (node, matching_nodes) {
        (Some(_), _) => "Its node, with what is allocatable, in use or not:".to_owned(),
        (None, 1) => "1 GPU node matches, with what is allocatable, in use or not:".to_owned(),
        (None, count) => format!("{count} GPU nodes match, with what is allocatable, in use or not:"),
    };
    let mut lines = vec![String::new(), title];
    for Candidate { node: name, model, allocatable, offers_enough, obstacle } in nodes {
        let good = *offers_enough && obstacle.is_empty();
        let first = format!("{} ", screen.mark(if good { Tone::Good } else { Tone::Warning }));
        let model = model.as_ref().map(|model| format!(" ({model})")).unwrap_or_default();
        let obstacle = if obstacle.is_empty() { String::new() } else { format!("; {obstacle}") };
        lines.extend(wrap(&format!("{name}{model}: {}{obstacle}", amounts(allocatable)), &first, 4));
    }
    if nodes.len() < *matching_nodes && node.is_none() {
        lines.push(format!("  and {} more", matching_nodes - nodes.len()));
    }
    lines
}

fn amounts(allocatable: &BTreeMap<String, u32>) -> String {
    let offered: Vec<_> = allocatable.iter().map(|(name, amount)| format!("{amount} {name}")).collect();
    if offered.is_empty() { "no GPU".to_owned() } else { offered.join(", ") }
}
