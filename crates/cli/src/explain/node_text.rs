//! The explanation of a node as text.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

use super::{
    checks::{Check, State},
    node_report::NodeReport,
};
use crate::screen::{Screen, Tone, age, wrap};

/// The column in which the evidence of a check begins.
const COLUMN: usize = 16;

/// Returns the explanation of a node as text.
pub fn of(report: &NodeReport, screen: Screen, now: Timestamp) -> String {
    let mut lines = headline(report, screen, now);
    lines.push(String::new());
    for item in &report.checks {
        lines.extend(check(item, screen, now));
    }
    if !report.events.is_empty() {
        lines.extend([String::new(), "Events:".to_owned()]);
        for event in &report.events {
            let ago = event.at.as_ref().map(|at| format!("{} ago", age(at.0, now))).unwrap_or_default();
            let tone = if event.kind == "Warning" { Tone::Warning } else { Tone::Quiet };
            let first = format!("{} {ago:<9} ", screen.mark(tone));
            lines.extend(wrap(&format!("{}: {}", event.reason, event.message), &first, 4));
        }
    }
    if let Some(action) = &report.action {
        lines.push(String::new());
        lines.extend(wrap(action, "Do: ", 4));
    }
    if !report.notes.is_empty() {
        lines.push(String::new());
    }
    lines.extend(report.notes.iter().flat_map(|note| wrap(&format!("{note}."), "Note: ", 6)));
    lines.join("\n") + "\n"
}

fn headline(report: &NodeReport, screen: Screen, now: Timestamp) -> Vec<String> {
    let NodeReport { node, ready, phase, reason, message, since, deadline, .. } = report;
    let (tone, state) = match phase {
        _ if *ready => (Tone::Good, "ready"),
        Some(_) => (Tone::Bad, "not ready"),
        None => (Tone::Warning, "not known as a GPU node"),
    };
    let state = [
        Some(format!("{}: {}", screen.paint(Tone::Strong, node), screen.paint(tone, state))),
        phase.filter(|_| !ready).map(|phase| format!("phase {phase}")),
        reason.as_ref().map(|reason| format!("{reason}{}", times(since.as_ref(), deadline.as_ref(), now))),
    ];
    let mut lines = wrap(&state.into_iter().flatten().collect::<Vec<_>>().join(", "), "", 2);
    if !message.is_empty() {
        lines.extend(wrap(message, "  ", 2));
    }
    if !report.waits_on.is_empty() {
        lines.extend(wrap(&format!("Waits for: {}", report.waits_on.join(", ")), "  ", 4));
    }
    lines
}

/// Returns how long a state has lasted, and the time until its deadline.
fn times(since: Option<&Time>, deadline: Option<&Time>, now: Timestamp) -> String {
    let lasted = since.map(|since| format!(" for {}", age(since.0, now))).unwrap_or_default();
    let left = deadline.map(|deadline| {
        if deadline.0 > now {
            format!(", deadline in {}", age(now, deadline.0))
        } else {
            format!(", deadline passed {} ago", age(deadline.0, now))
        }
    });
    lasted + &left.unwrap_or_default()
}

fn check(check: &Check, screen: Screen, now: Timestamp) -> Vec<String> {
    let Check { name, state, detail, since, deadline, evidence, .. } = check;
    let tone = match state {
        State::Done => Tone::Good,
        State::InProgress | State::Unknown => Tone::Warning,
        State::Failed => Tone::Bad,
        State::Pending | State::NotNeeded => Tone::Quiet,
    };
    let first = format!("{} {name:<width$}", screen.mark(tone), width = COLUMN - 2);
    let times = times(since.as_ref(), deadline.as_ref(), now);
    let detail = if times.is_empty() { detail.clone() } else { format!("{detail} ({})", times.trim_start()) };
    let mut lines = wrap(&detail, &first, COLUMN);
    for line in evidence {
        let lasted = line.since.as_ref().map(|since| format!(" ({})", age(since.0, now))).unwrap_or_default();
        lines.extend(wrap(&format!("{}{lasted}", line.text), &" ".repeat(COLUMN), COLUMN + 2));
    }
    lines
}
