//! What `status` and `explain` report: sections of lines, each with the lines that belong to it. And how these are printed.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use serde::Serialize;

use crate::{
    context::Outcome,
    output::{Screen, Tone, WIDTH, age, columns, wrap},
};

/// The number of lines of a clipped message.
const MESSAGE_LINES: usize = 2;
/// The column in which the text of a check begins.
const COLUMN: usize = 16;

#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether everything is as it should be.
    pub is_good: bool,
    pub sections: Vec<Vec<Line>>,
}

#[derive(Serialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Line {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<Tone>,
    /// What the line is about, such as a node, a check or a reason.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// The numbers and states of a row or title.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cells: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// The time of the last change, or of an Event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// The time at which the state becomes a failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<Timestamp>,
    /// The lines below this one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub lines: Vec<Self>,
    #[serde(skip)]
    pub look: Look,
}

/// How a line is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// `name for 5m: text`.
    #[default]
    Plain,
    /// As [`Look::Plain`], without the end of a long text.
    Clipped,
    /// `name: cell, cell for 5m`.
    Title,
    /// `name  cell  cell`.
    Row,
    /// As [`Look::Row`], in columns with the other lines of this look.
    Aligned,
    /// `name    text (for 5m)`.
    Check,
    /// `text (5m)`.
    Evidence,
    /// `5m ago    name: text`.
    Event,
    /// `name: text`, with the text in a column.
    Label,
}

impl Report {
    pub fn outcome(&self) -> Outcome {
        if self.is_good { Outcome::Good } else { Outcome::Bad }
    }

    /// Returns the report as text, with ages at this time.
    pub fn text(&self, screen: Screen, now: Timestamp) -> String {
        let printer = Printer { screen, now };
        let sections = self.sections.iter().filter(|section| !section.is_empty());
        let sections: Vec<_> = sections.map(|section| printer.lines(section, 0).join("\n")).collect();
        sections.join("\n\n") + "\n"
    }
}

impl Line {
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    pub fn named(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::text(text) }
    }

    pub fn label(name: &str, text: impl Into<String>) -> Self {
        Self { look: Look::Label, ..Self::named(name, text) }
    }

    pub fn check(name: &str, state: Tone, text: impl Into<String>) -> Self {
        Self { state: Some(state), look: Look::Check, ..Self::named(name, text) }
    }

    pub fn evidence(text: impl Into<String>) -> Self {
        Self { look: Look::Evidence, ..Self::text(text) }
    }

    pub fn since(self, since: Option<Time>) -> Self {
        Self { since: since.map(|time| time.0), ..self }
    }

    pub fn with(self, lines: Vec<Self>) -> Self {
        Self { lines, ..self }
    }
}

#[derive(Clone, Copy)]
struct Printer {
    screen: Screen,
    now: Timestamp,
}

impl Printer {
    fn lines(self, lines: &[Line], indent: usize) -> Vec<String> {
        let aligned: Vec<_> =
            lines.iter().filter(|line| line.look == Look::Aligned).map(|line| self.cells(line, indent)).collect();
        let widths = widths(&aligned);
        let below = |line: &Line| if line.look == Look::Check { COLUMN } else { indent + 2 };
        let print = |line: &Line| {
            let mut printed = self.line(line, indent, &widths);
            printed.extend(self.lines(&line.lines, below(line)));
            printed
        };
        lines.iter().flat_map(print).collect()
    }

    fn line(self, line: &Line, indent: usize, widths: &[usize]) -> Vec<String> {
        let Line { state, name, text, since, .. } = line;
        let mark = state.map(|tone| self.screen.mark(tone) + " ").unwrap_or_default();
        let (first, rest) = (format!("{}{mark}", " ".repeat(indent)), indent + columns(&mark));
        let plain = || wrap(&self.sentence(line), &first, rest);
        match line.look {
            Look::Plain => plain(),
            Look::Clipped => clipped(plain()),
            Look::Title => {
                let cells = self.cells(line, indent);
                let (name, cells) = cells.split_first().map(|(name, cells)| (name.as_str(), cells)).unwrap_or_default();
                wrap(&format!("{name}: {}{}", cells.join(", "), self.times(line)), "", 2)
            }
            Look::Row => row(indent, &self.cells(line, indent), &[]),
            Look::Aligned => row(indent, &self.cells(line, indent), widths),
            Look::Check => {
                let times = self.times(line);
                let times = if times.is_empty() {
                    String::new()
                } else {
                    format!(" ({})", times.trim_start_matches([' ', ',']))
                };
                wrap(&format!("{text}{times}"), &format!("{mark}{name:<width$}", width = COLUMN - 2), COLUMN)
            }
            Look::Evidence => {
                let lasted = since.map(|since| format!(" ({})", age(since, self.now))).unwrap_or_default();
                wrap(&format!("{text}{lasted}"), &first, rest + 2)
            }
            Look::Event => {
                let ago = since.map(|since| format!("{} ago", age(since, self.now))).unwrap_or_default();
                wrap(&format!("{name}: {text}"), &format!("{mark}{ago:<9} "), 4)
            }
            Look::Label => wrap(text, &format!("{name}: "), columns(name) + 2),
        }
    }

    /// Returns the name and the cells. At the left edge, the colour of the first cell is the state; below, a mark before the name is.
    fn cells(self, line: &Line, indent: usize) -> Vec<String> {
        let Line { state, name, cells, .. } = line;
        let mark = state.filter(|_| indent > 0).map(|tone| self.screen.mark(tone) + " ").unwrap_or_default();
        let name = if indent > 0 { name.clone() } else { self.screen.paint(Tone::Strong, name) };
        let mut all = vec![format!("{mark}{name}")];
        all.extend(cells.iter().enumerate().map(|(at, cell)| match state {
            Some(tone) if at == 0 && indent == 0 => self.screen.paint(*tone, cell),
            _ => cell.clone(),
        }));
        all
    }

    fn sentence(self, line: &Line) -> String {
        let name = if line.state.is_some() { self.screen.paint(Tone::Strong, &line.name) } else { line.name.clone() };
        match (line.name.is_empty(), line.text.is_empty()) {
            (true, _) => line.text.clone(),
            (false, true) => format!("{name}{}", self.times(line)),
            (false, false) => format!("{name}{}: {}", self.times(line), line.text),
        }
    }

    fn times(self, line: &Line) -> String {
        let lasted = line.since.map(|since| format!(" for {}", age(since, self.now))).unwrap_or_default();
        let left = line.deadline.map(|deadline| {
            if deadline > self.now {
                format!(", deadline in {}", age(self.now, deadline))
            } else {
                format!(", deadline passed {} ago", age(deadline, self.now))
            }
        });
        lasted + &left.unwrap_or_default()
    }
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
fn row(indent: usize, cells: &[String], widths: &[usize]) -> Vec<String> {
    let indent = " ".repeat(indent);
    let padded = cells.iter().enumerate().map(|(at, cell)| {
        let width = widths.get(at).copied().unwrap_or_default();
        format!("{cell}{}", " ".repeat(width.saturating_sub(columns(cell))))
    });
    let line = format!("{indent}{}", padded.collect::<Vec<_>>().join("  "));
    if columns(line.trim_end()) <= WIDTH {
        return vec![line.trim_end().to_owned()];
    }
    let mut lines = vec![indent.clone()];
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
