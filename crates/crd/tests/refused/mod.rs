//! The rows of docs/refused.md, which is the table of these tests: what is written there holds, or one of them fails.

use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../../docs/refused.md");

/// A row: its cells by the heads of their columns.
pub struct Row(BTreeMap<&'static str, &'static str>);

impl Row {
    /// A cell as it stands.
    pub fn cell(&self, column: &str) -> &'static str {
        self.0.get(column).unwrap_or_else(|| panic!("no column {column}: {:?}", self.0))
    }

    /// The code that a cell begins with, if it begins with code.
    pub fn code(&self, column: &str) -> Option<&'static str> {
        let (code, _) = self.cell(column).strip_prefix('`')?.split_once('`')?;
        Some(code)
    }

    /// The code of a cell that has nothing else.
    pub fn text(&self, column: &str) -> &'static str {
        self.code(column).unwrap_or_else(|| panic!("{column} is no code: {:?}", self.0))
    }
}

/// The rows of the tables under a heading, up to the next one.
pub fn rows(heading: &str) -> Vec<Row> {
    let section = PAGE.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading).skip(1);
    let section = section.take_while(|line| !line.starts_with('#'));
    let (mut columns, mut rows) = (Vec::new(), Vec::new());
    for line in section {
        if !line.starts_with('|') {
            columns.clear();
            continue;
        }
        if line.starts_with("|--") {
            continue;
        }
        let cells = line.trim_matches('|').trim().split(" | ");
        if columns.is_empty() {
            columns.extend(cells);
        } else {
            rows.push(Row(columns.iter().copied().zip(cells).collect()));
        }
    }
    assert!(!rows.is_empty(), "docs/refused.md has no table under {heading:?}");
    rows
}
