//! Figures as tables in Markdown.

use std::{collections::BTreeSet, fmt::Write};

use cluster_client::audit::Requests;

use super::{
    figures::{Figures, ROWS},
    row::{Row, number},
};

/// Returns all figures of fleets, and the requests of the installation by kind.
pub(super) fn fleets(all: &[Figures]) -> String {
    let fleets: Vec<_> = all.iter().map(|figures| (nodes(figures.nodes), figures)).collect();
    let installs: Vec<_> = all.iter().map(|figures| (nodes(figures.nodes), &figures.install)).collect();
    format!("{}\n{}", figures(&ROWS, &fleets), kinds("from apply until quiet", &installs))
}

/// Returns the heading of a fleet's column.
pub(super) fn nodes(nodes: u32) -> String {
    format!("{} nodes", number(nodes.into(), 0))
}

/// Returns a table with a line for each figure and a column for each measurement, given with its heading.
pub(super) fn figures<F>(rows: &[Row<F>], all: &[(String, &F)]) -> String {
    let heading = std::iter::once(String::new()).chain(all.iter().map(|(heading, _)| heading.clone())).collect();
    let line = |row: &Row<F>| {
        std::iter::once(row.what.to_owned()).chain(all.iter().map(|(_, measured)| row.cell(measured))).collect()
    };
    let lines: Vec<Vec<String>> = std::iter::once(heading).chain(rows.iter().map(line)).collect();
    markdown(&lines)
}

/// Returns a table with a line for each kind of request and a column for each measurement, given with its heading.
pub(super) fn kinds(when: &str, all: &[(String, &Requests)]) -> String {
    let counts: Vec<_> = all.iter().map(|(_, requests)| requests.by_kind()).collect();
    let kinds: BTreeSet<&String> = counts.iter().flat_map(|counts| counts.keys()).collect();
    let headings = all.iter().map(|(heading, _)| heading.clone());
    let mut lines = vec![std::iter::once(when.to_owned()).chain(headings).collect()];
    for kind in kinds {
        let cells = counts.iter().map(|counts| counts.get(kind).map_or_else(|| "0".to_owned(), usize::to_string));
        lines.push(std::iter::once(format!("`{kind}`")).chain(cells).collect());
    }
    markdown(&lines)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_next_to_its_limit() {
        let text = fleets(&[Figures::example(100, 3), Figures::example(700, 3)]);
        assert!(text.starts_with("|  | 100 nodes | 700 nodes |\n|---|---:|---:|\n"), "{text}");
        let writes = "| writes from apply until quiet | 300 (at most 425) | 2,100 (at most 2,825) |";
        assert!(text.contains(writes), "{text}");
        assert!(text.contains("| `patch nodes` | 300 | 2100 |"), "{text}");
    }

    #[test]
    fn every_measurement_has_a_column() {
        let rows = [Row::count("half", |of: &f64| of / 2.0).at_most(|_| 3.0), Row::measure("all", |of| *of)];
        let text = figures(&rows, &[("first".to_owned(), &4.0), ("second".to_owned(), &2_000.0)]);
        let wanted = "\
            |  | first | second |\n|---|---:|---:|\n\
            | half | 2 (at most 3) | 1,000 (at most 3) |\n| all | 4.0 | 2,000.0 |\n";
        assert_eq!(text, wanted);
    }
}
