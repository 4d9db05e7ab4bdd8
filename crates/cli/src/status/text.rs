//! The report of `status` as text: one line for each policy and pool, and below it what needs attention.

use std::fmt::Write;

use gpu_operator_crd::{
    NodeName,
    policy_status::{Attention, GpuTotals, NodeCounts},
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;

use crate::{
    context::COMMAND,
    output::{Screen, Tone, WIDTH, age, columns, wrap},
    status::{
        facts::Operator,
        report::{NodeReport, PolicyReport, PoolReport, PoolState, Report},
    },
};

/// The number of lines of a message: `explain` shows all of it.
const MESSAGE_LINES: usize = 2;
/// The number of pools that are ready and have lines of their own.
const READY_POOLS: usize = 8;

/// Returns the report as text, with ages at this time.
pub fn of(report: &Report, screen: Screen, now: Timestamp) -> String {
    let text = Text { screen, now };
    let mut lines = text.operator(&report.operator);
    for policy in &report.policies {
        lines.extend(text.policy(policy));
    }
    for name in &report.unreadable {
        let why =
            format!("policy {name} cannot be parsed: it is of a later version than this command; install that version");
        lines.extend(text.wrapped(Tone::Bad, "", &why));
    }
    if report.policies.is_empty() && report.unreadable.is_empty() {
        lines.extend(wrap(
            "No ClusterGpuPolicy exists. Nodes get a GPU stack once one is applied, for example with spec: {}.",
            "",
            0,
        ));
    }
    if let Some(nodes) = &report.nodes {
        lines.extend(text.nodes(nodes));
    }
    lines.extend(report.notes.iter().flat_map(|note| wrap(note, "Note: ", 6)));
    if let Some(next) = &report.next {
        lines.extend(wrap(&format!("{COMMAND} explain {next}"), "Do: ", 4));
    }
    lines.join("\n") + "\n"
}

#[derive(Clone, Copy)]
struct Text {
    screen: Screen,
    now: Timestamp,
}

impl Text {
    fn operator(self, operator: &Operator) -> Vec<String> {
        let why = match operator {
            Operator::Available | Operator::Unknown => return Vec::new(),
            Operator::Unavailable { since } => {
                let since = since.map(|since| format!(" for {}", self.age(since))).unwrap_or_default();
                format!("The operator has not been available{since}: what follows is what it wrote last.")
            }
            Operator::Absent { namespace } => format!(
                "There is no operator in namespace {namespace}: what follows is what it wrote last. Install the chart, or set --operator-namespace."
            ),
        };
        self.wrapped(Tone::Bad, "", &why)
    }

    fn policy(self, policy: &PolicyReport) -> Vec<String> {
        let tone = match policy.status {
            "Ready" => Tone::Good,
            "RollingOut" | "Degraded" | "Unknown" => Tone::Warning,
            _ => Tone::Bad,
        };
        let mut cells = vec![
            self.screen.paint(Tone::Strong, &policy.name),
            self.screen.paint(tone, policy.status),
            nodes(&policy.nodes),
        ];
        cells.extend(gpus(&policy.gpus));
        let mut lines = row("", &cells, &[]);
        if policy.status == "Unknown" {
            lines.push("  The operator has not observed the last change of the policy yet.".to_owned());
        } else if policy.status != "Ready" {
            let since = policy.since.map(|since| format!(" for {}", self.age(since))).unwrap_or_default();
            lines.extend(clipped(wrap(&format!("{}{since}: {}", policy.reason, policy.message), "  ", 2)));
        }
        // The message of a rollout says it.
        if policy.is_paused && policy.status != "RollingOut" {
            lines.push("  Rollouts are paused: spec.rollout.paused is true.".to_owned());
        }
        lines.extend(policy.overlaps.iter().flat_map(|overlap| {
            let (count, other, by) = (overlap.nodes, &overlap.policy, &overlap.governed_by);
            let governs = if other == by { "and governs them" } else { "which this policy governs" };
            wrap(&format!("Policy {other} selects {count} of the same nodes, {governs}."), "  ", 2)
        }));
        lines.extend(self.pools(&policy.pools));
        lines
    }

    fn pools(self, pools: &[PoolReport]) -> Vec<String> {
        let is_ready = |pool: &&PoolReport| pool.state == PoolState::Ready && pool.attention.is_empty();
        let ready: Vec<_> = pools.iter().filter(is_ready).collect();
        let shown = if ready.len() > READY_POOLS { READY_POOLS } else { ready.len() };
        let rows: Vec<_> = pools.iter().filter(|pool| !is_ready(pool)).chain(ready[..shown].iter().copied()).collect();
        let cells: Vec<_> = rows.iter().map(|pool| self.pool(pool)).collect();
        let widths = widths(&cells);
        let mut lines = Vec::new();
        for (pool, cells) in rows.iter().zip(&cells) {
            lines.extend(row("  ", cells, &widths));
            lines.extend(self.below(pool));
        }
        let rest = &ready[shown..];
        if !rest.is_empty() {
            let sum = |count: fn(&NodeCounts) -> u32| rest.iter().map(|pool| count(&pool.nodes)).sum::<u32>();
            let (ready, total) = (sum(|nodes| nodes.ready), sum(|nodes| nodes.total));
            lines.push(format!("  {} {} more pools  {ready}/{total} ready", self.screen.mark(Tone::Good), rest.len()));
        }
        lines
    }

    fn pool(self, pool: &PoolReport) -> Vec<String> {
        let tone = match pool.state {
            PoolState::Failed => Tone::Bad,
            PoolState::Progressing => Tone::Warning,
            PoolState::Ready => Tone::Good,
        };
        let NodeCounts { total, ready, outdated, excluded, .. } = pool.nodes;
        let none = if pool.reason.is_some() { "no driver" } else { "host driver" };
        let mut cells = vec![
            format!("{} {}", self.screen.mark(tone), pool.name),
            pool.driver_version.clone().unwrap_or_else(|| none.to_owned()),
            format!("{ready}/{total} ready"),
        ];
        cells.extend(gpus(&pool.gpus));
        if outdated > 0 {
            let eligible = total.saturating_sub(excluded);
            cells.push(format!("{}/{eligible} updated", eligible.saturating_sub(outdated)));
        }
        if excluded > 0 {
            cells.push(format!("{excluded} excluded"));
        }
        cells
    }

    /// Returns the lines below a pool: why it does not proceed, what is being updated, and its nodes that need attention.
    fn below(self, pool: &PoolReport) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(reason) = &pool.reason {
            lines.extend(clipped(wrap(&format!("{reason}: {}", pool.message), "    ", 4)));
        }
        if !pool.rolled_back.is_empty() {
            lines.extend(wrap(&format!("going back to the previous revision: {}", pool.rolled_back), "    ", 4));
        }
        if !pool.updating.is_empty() {
            let turn = |(node, since): &(_, Option<Timestamp>)| match since {
                Some(since) => format!("{node} ({})", self.age(*since)),
                None => format!("{node}"),
            };
            let turns: Vec<_> = pool.updating.iter().map(turn).collect();
            lines.extend(wrap(&format!("updating {}", turns.join(", ")), "    ", 4));
        }
        if !pool.failed_updates.is_empty() {
            let nodes: Vec<_> = pool.failed_updates.iter().map(NodeName::as_str).collect();
            lines.extend(wrap(&format!("failed updates: {}", nodes.join(", ")), "    ", 4));
        }
        // The policy has a line about all of its overlaps.
        let own = pool.attention.iter().filter(|attention| attention.reason != Reason::PolicyOverlap);
        lines.extend(own.flat_map(|attention| self.attention(attention)));
        lines
    }

    fn attention(self, attention: &Attention) -> Vec<String> {
        let Attention { node, reason, message, since, .. } = attention;
        let tone = if attention.reason().is_some_and(Reason::is_failure) { Tone::Bad } else { Tone::Warning };
        let since = since.as_ref().map(|since| format!(" for {}", self.age(since.0))).unwrap_or_default();
        clipped(self.wrapped(tone, "    ", &format!("{node} {reason}{since}: {message}")))
    }

    fn nodes(self, nodes: &[NodeReport]) -> Vec<String> {
        if nodes.is_empty() {
            return vec!["All GpuNodes are ready.".to_owned()];
        }
        let (count, are) = (nodes.len(), if nodes.len() == 1 { "GpuNode is" } else { "GpuNodes are" });
        let mut lines = vec![format!("{count} {are} not ready:")];
        for NodeReport { name, phase, reason, is_failed, message, since, deadline } in nodes {
            let tone = if *is_failed { Tone::Bad } else { Tone::Warning };
            let since = since.map(|since| format!(" for {}", self.age(since))).unwrap_or_default();
            let deadline = match deadline {
                Some(deadline) if *deadline > self.now => format!(", a failure in {}", age(self.now, *deadline)),
                Some(deadline) => format!(", a failure since {}", self.age(*deadline)),
                None => ", without a deadline".to_owned(),
            };
            lines.extend(self.wrapped(tone, "  ", &format!("{name} {phase:?}, {reason}{since}{deadline}: {message}")));
        }
        lines
    }

    fn wrapped(self, tone: Tone, indent: &str, text: &str) -> Vec<String> {
        wrap(text, &format!("{indent}{} ", self.screen.mark(tone)), columns(indent) + 2)
    }

    fn age(self, since: Timestamp) -> String {
        age(since, self.now)
    }
}

fn nodes(counts: &NodeCounts) -> String {
    let NodeCounts { total, ready, excluded, opted_out, leaving, .. } = *counts;
    let mut text = format!("{ready}/{total} nodes");
    for (count, what) in [(excluded, "excluded"), (opted_out, "opted out"), (leaving, "leaving")] {
        if count > 0 {
            // Writing to a String cannot fail.
            let _ = write!(text, ", {count} {what}");
        }
    }
    text
}

fn gpus(totals: &GpuTotals) -> Vec<String> {
    let GpuTotals { expected, allocatable, unhealthy, degraded, unknown } = *totals;
    let mut cells = vec![format!("{allocatable}/{expected} GPUs")];
    for (count, what) in [(unhealthy, "unhealthy"), (degraded, "degraded"), (unknown, "of unknown health")] {
        if count > 0 {
            cells.push(format!("{count} {what}"));
        }
    }
    cells
}

fn clipped(mut lines: Vec<String>) -> Vec<String> {
    if lines.len() > MESSAGE_LINES {
        lines.truncate(MESSAGE_LINES);
        if let Some(last) = lines.last_mut() {
            // The end of the line makes room.
            while columns(last) + 4 > WIDTH
                && let Some(end) = last.trim_end().rfind(' ')
            {
                last.truncate(end);
            }
            last.push_str(" ...");
        }
    }
    lines
}

fn widths(rows: &[Vec<String>]) -> Vec<usize> {
    // What follows is not the same in all rows.
    (0..4)
        .map(|at| rows.iter().filter_map(|row| row.get(at)).map(|cell| columns(cell)).max().unwrap_or_default())
        .collect()
}

/// Returns cells in one line, in columns of these widths, or in several lines if they do not fit into one.
fn row(indent: &str, cells: &[String], widths: &[usize]) -> Vec<String> {
    let padded = cells.iter().enumerate().map(|(at, cell)| {
        let width = widths.get(at).copied().unwrap_or_default();
        format!("{cell}{}", " ".repeat(width.saturating_sub(columns(cell))))
    });
    let line = format!("{indent}{}", padded.collect::<Vec<_>>().join("  "));
    if columns(line.trim_end()) <= WIDTH {
        return vec![line.trim_end().to_owned()];
    }
    let mut lines = vec![indent.to_owned()];
    for cell in cells {
        let is_first = lines.last().is_none_or(|line| line.trim().is_empty());
        match lines.last_mut() {
            Some(line) if is_first => line.push_str(cell),
            Some(line) if columns(line) + 2 + columns(cell) <= WIDTH => {
                line.push_str("  ");
                line.push_str(cell);
            }
            _ => lines.push(format!("{indent}  {cell}")),
        }
    }
    lines
}
