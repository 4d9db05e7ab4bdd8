//! The figures as Markdown.

use std::{collections::BTreeSet, fmt::Write};

use super::figures::{Figures, NVIDIA, ROWS, Row, number};

/// All figures beside those of NVIDIA's operator, and the requests of the installation by kind.
pub(super) fn tables(all: &[Figures]) -> String {
    format!("{}\n{}", comparison(all), kinds(all))
}

fn comparison(all: &[Figures]) -> String {
    let mut lines = Vec::new();
    let mut heading = vec![String::new()];
    for figures in all {
        let nodes = number(figures.nodes.into(), 0);
        heading.extend([format!("{nodes} nodes"), "NVIDIA's".to_owned()]);
    }
    lines.push(heading);
    for row in ROWS {
        let cells = all.iter().flat_map(|figures| [ours(&row, figures), theirs(&row, figures)]);
        lines.push(std::iter::once(row.what.to_owned()).chain(cells).collect());
    }
    markdown(&lines)
}

fn ours(row: &Row, figures: &Figures) -> String {
    let value = number((row.ours)(figures), row.decimals);
    match row.limit {
        Some(limit) => format!("{value} (at most {})", number(limit(figures), row.decimals)),
        None => value,
    }
}

fn theirs(row: &Row, figures: &Figures) -> String {
    let measured = NVIDIA.iter().find(|theirs| theirs.nodes == figures.nodes);
    let value = row.theirs.zip(measured).map(|(theirs, measured)| number(theirs(measured), row.decimals));
    value.unwrap_or_else(|| "–".to_owned())
}

fn kinds(all: &[Figures]) -> String {
    let counts: Vec<_> = all.iter().map(|figures| figures.install.by_kind()).collect();
    let kinds: BTreeSet<&String> = counts.iter().flat_map(|counts| counts.keys()).collect();
    let heading = all.iter().map(|figures| format!("{} nodes", number(figures.nodes.into(), 0)));
    let mut lines = vec![std::iter::once("from apply until quiet".to_owned()).chain(heading).collect()];
    for kind in kinds {
        let cells = counts.iter().map(|counts| counts.get(kind).map_or_else(|| "0".to_owned(), usize::to_string));
        lines.push(std::iter::once(format!("`{kind}`")).chain(cells).collect());
    }
    markdown(&lines)
}

/// The first line is the heading; numbers stand to the right.
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
    use super::{super::figures::tests::figures, *};

    #[test]
    fn every_figure_stands_beside_its_limit_and_nvidias() {
        let text = tables(&[figures(100, 3), figures(700, 3)]);
        assert!(
            text.starts_with("|  | 100 nodes | NVIDIA's | 700 nodes | NVIDIA's |\n|---|---:|---:|---:|---:|\n"),
            "{text}"
        );
        let writes = "| writes from apply until quiet | 300 (at most 425) | 2,991 | 2,100 (at most 2,825) | – |";
        assert!(text.contains(writes), "{text}");
        assert!(text.contains("| `patch nodes` | 300 | 2100 |"), "{text}");
        let widths: BTreeSet<_> =
            comparison(&[figures(100, 3)]).lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(widths.len(), 1, "every line has as many cells as the heading: {text}");
    }
}
