//! How commands print: text for people or JSON for programs.

use std::io::{self, Write};

use serde::Serialize;

/// The format of a command's output.
#[derive(clap::ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

/// The flag that selects the format.
#[derive(clap::Args, Clone, Copy, Debug, Default)]
pub struct Output {
    /// Format of the output.
    #[arg(short = 'o', long = "output", value_enum, default_value = "text")]
    pub format: Format,
}

impl Output {
    /// Prints a report to standard output: as JSON, or as the text that `text` returns.
    pub fn print<T: Serialize>(self, report: &T, text: impl FnOnce(&T) -> String) -> io::Result<()> {
        let printed = match self.format {
            Format::Text => text(report),
            Format::Json => serde_json::to_string_pretty(report).map_err(io::Error::from)? + "\n",
        };
        io::stdout().write_all(printed.as_bytes())
    }
}
