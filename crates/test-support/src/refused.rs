//! The tables in docs/reference/rejected.md, which are test tables: each row is verified.

use std::collections::BTreeMap;

const PAGE: &str = include_str!("../../../docs/reference/rejected.md");

/// A row: its cells by column header.
pub struct Row(BTreeMap<&'static str, &'static str>);

impl Row {
    /// Returns a cell.
    pub fn cell(&self, column: &str) -> &'static str {
        self.0.get(column).unwrap_or_else(|| panic!("no column {column}: {:?}", self.0))
    }

    /// Returns the code at the beginning of a cell, if there is any.
    pub fn code(&self, column: &str) -> Option<&'static str> {
        let (code, _) = self.cell(column).strip_prefix('`')?.split_once('`')?;
        Some(code)
    }

    /// Returns the code of a cell that starts with code.
    pub fn text(&self, column: &str) -> &'static str {
        self.code(column).unwrap_or_else(|| panic!("column {column} does not start with code: {:?}", self.0))
    }
}

/// Returns the rows of the tables below a heading, up to the next heading.
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
    assert!(!rows.is_empty(), "docs/reference/rejected.md has no table under {heading:?}");
    rows
}
