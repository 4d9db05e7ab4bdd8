//! The figures of measurements, as tables in Markdown.

use std::{collections::BTreeSet, fmt::Write};

use cluster_client::audit::Requests;

const KIB: f64 = 1024.0;

/// The figures of one measurement: a column of the table.
#[derive(Clone, Debug, Default)]
pub(super) struct Column {
    heading: String,
    figures: Vec<Figure>,
    /// A phase, and its requests.
    requests: Option<(&'static str, Requests)>,
}

#[derive(Clone, Debug)]
struct Figure {
    what: &'static str,
    value: f64,
    decimals: usize,
    /// The maximum allowed value.
    limit: Option<f64>,
}

impl Column {
    pub fn new(heading: String) -> Self {
        Self { heading, ..Self::default() }
    }

    /// Creates the column of a fleet.
    pub fn of_fleet(nodes: u32) -> Self {
        Self::new(of_nodes(nodes))
    }

    /// Adds a whole number.
    pub fn count(&mut self, what: &'static str, value: impl Into<f64>) -> &mut Self {
        self.add(what, value.into(), 0)
    }

    /// Adds a figure with one decimal.
    pub fn measure(&mut self, what: &'static str, value: f64) -> &mut Self {
        self.add(what, value, 1)
    }

    fn add(&mut self, what: &'static str, value: f64, decimals: usize) -> &mut Self {
        self.figures.push(Figure { what, value, decimals, limit: None });
        self
    }

    /// Sets the maximum allowed value of the figure that was added last.
    pub fn at_most(&mut self, limit: impl Into<f64>) -> &mut Self {
        if let Some(figure) = self.figures.last_mut() {
            figure.limit = Some(limit.into());
        }
        self
    }

    /// Sets the requests that are listed by kind, and the phase in which they were made.
    pub fn list(&mut self, when: &'static str, requests: Requests) {
        self.requests = Some((when, requests));
    }

    /// Returns a message for every figure above its limit.
    pub fn exceeded(&self) -> impl Iterator<Item = String> {
        self.figures.iter().filter_map(|figure| {
            let limit = figure.limit.filter(|limit| figure.value > *limit)?;
            let [value, limit] = [figure.value, limit].map(|value| number(value, figure.decimals));
            Some(format!("{}, {}: {value} (limit {limit})", self.heading, figure.what))
        })
    }
}

impl Figure {
    fn cell(&self) -> String {
        let value = number(self.value, self.decimals);
        self.limit.map_or(value.clone(), |limit| format!("{value} (at most {})", number(limit, self.decimals)))
    }
}

/// Returns a table with a line for each figure, and one with a line for each kind of request.
pub(super) fn tables(columns: &[Column]) -> String {
    let headings = || columns.iter().map(|column| column.heading.clone());
    let mut lines: Vec<Vec<String>> = vec![std::iter::once(String::new()).chain(headings()).collect()];
    for (index, figure) in columns.first().iter().flat_map(|column| &column.figures).enumerate() {
        let cells = columns.iter().filter_map(|column| column.figures.get(index)).map(Figure::cell);
        lines.push(std::iter::once(figure.what.to_owned()).chain(cells).collect());
    }
    let mut text = markdown(&lines);
    if let Some((when, _)) = columns.first().and_then(|column| column.requests.as_ref()) {
        let counts: Vec<_> = columns.iter().flat_map(|column| &column.requests).map(|(_, all)| all.by_kind()).collect();
        let kinds: BTreeSet<&String> = counts.iter().flat_map(|counts| counts.keys()).collect();
        let mut lines = vec![std::iter::once((*when).to_owned()).chain(headings()).collect()];
        for kind in kinds {
            let cells = counts.iter().map(|counts| counts.get(kind).copied().unwrap_or_default().to_string());
            lines.push(std::iter::once(format!("`{kind}`")).chain(cells).collect());
        }
        text = format!("{text}\n{}", markdown(&lines));
    }
    text
}

/// Formats a table. The first line is its heading; numbers are aligned to the right.
fn markdown(lines: &[Vec<String>]) -> String {
    let mut text = String::new();
    for (index, cells) in lines.iter().enumerate() {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let _ = writeln!(text, "|---|{}", "---:|".repeat(cells.len().saturating_sub(1)));
        }
    }
    text
}

/// Returns the heading of a fleet.
pub(super) fn of_nodes(nodes: u32) -> String {
    format!("{} nodes", number(nodes.into(), 0))
}

/// Formats a number with separators of thousands, such as `12,756`.
fn number(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

/// Returns the number of requests.
pub(super) fn requests(requests: &Requests) -> f64 {
    float(requests.count())
}

/// Returns the number of requests that read.
pub(super) fn reads(of: &Requests) -> f64 {
    requests(&of.only(|request| !request.is_write()))
}

/// Converts a count; it is exact up to 4,000,000,000.
pub(super) fn float(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::INFINITY, f64::from)
}

/// Converts bytes to MiB, in whole KiB as the kernel counts.
pub(super) fn mib(bytes: u64) -> f64 {
    u32::try_from(bytes / 1024).map_or(f64::INFINITY, f64::from) / KIB
}

/// Returns the operator's limit of memory, in MiB.
pub(super) fn memory_limit(nodes: u32, gpus: u32) -> f64 {
    32.0 + (f64::from(nodes) * 8.0 + f64::from(gpus)) / KIB
}

#[cfg(test)]
mod tests {
    use cluster_client::audit::Request;

    use super::*;

    #[test]
    fn measurements_are_columns_and_exceeded_limits_are_reported() {
        let request = Request { verb: "patch".into(), resource: "nodes".into(), name: "n".into(), code: 200 };
        let column = |nodes: u32| {
            let mut column = Column::of_fleet(nodes);
            column.count("nodes", nodes).at_most(999).measure("memory, MiB", mib(33 << 20));
            column.list("until quiet", Requests(vec![request.clone(); nodes as usize]));
            column
        };
        let columns = [column(5), column(1_000)];
        assert_eq!(
            tables(&columns),
            "|  | 5 nodes | 1,000 nodes |\n|---|---:|---:|\n| nodes | 5 (at most 999) | 1,000 (at most 999) |\n\
             | memory, MiB | 33.0 | 33.0 |\n\n\
             | until quiet | 5 nodes | 1,000 nodes |\n|---|---:|---:|\n| `patch nodes` | 5 | 1000 |\n"
        );
        let exceeded: Vec<String> = columns.iter().flat_map(Column::exceeded).collect();
        assert_eq!(exceeded, ["1,000 nodes, nodes: 1,000 (limit 999)"]);
    }
}
