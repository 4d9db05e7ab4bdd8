//! How commands print: text for people or JSON for programs; colours and marks if a terminal can show them, and lines of at most
//! 80 columns.

use std::{
    env,
    io::{self, IsTerminal, Write},
};

use k8s_openapi::jiff::Timestamp;
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

/// The maximum width of a line, in columns.
pub const WIDTH: usize = 80;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Screen {
    pub colour: bool,
    /// Whether marks may be other characters than ASCII.
    pub unicode: bool,
}

/// What a text expresses by its colour. Those of states are in the order of their urgency.
#[derive(Serialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tone {
    Good,
    Warning,
    Bad,
    Quiet,
    Strong,
}

impl Tone {
    fn code(self) -> u8 {
        match self {
            Self::Good => 32,
            Self::Warning => 33,
            Self::Bad => 31,
            Self::Quiet => 2,
            Self::Strong => 1,
        }
    }
}

impl Screen {
    /// Returns what standard output can show, according to the environment: no colours if it is not a terminal, if `NO_COLOR` is set
    /// and not empty, or if `TERM` is `dumb`; other characters than ASCII if the locale is UTF-8.
    pub fn of_stdout() -> Self {
        let value = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        Self::of(io::stdout().is_terminal(), value)
    }

    fn of(is_terminal: bool, value: impl Fn(&str) -> Option<String>) -> Self {
        let is_dumb = value("TERM").is_some_and(|term| term == "dumb");
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(&value);
        let is_utf8 = |locale: String| locale.to_ascii_lowercase().replace('-', "").ends_with("utf8");
        Self { colour: is_terminal && !is_dumb && value("NO_COLOR").is_none(), unicode: locale.is_some_and(is_utf8) }
    }

    pub fn paint(self, tone: Tone, text: &str) -> String {
        if self.colour { format!("\x1b[{}m{text}\x1b[0m", tone.code()) } else { text.to_owned() }
    }

    /// Returns the mark of a tone, of one column.
    pub fn mark(self, tone: Tone) -> String {
        let (unicode, ascii) = match tone {
            Tone::Good => ("√", "+"),
            Tone::Warning => ("‼", "!"),
            Tone::Bad => ("×", "x"),
            Tone::Quiet | Tone::Strong => ("·", "-"),
        };
        self.paint(tone, if self.unicode { unicode } else { ascii })
    }
}

/// Breaks a text into lines of at most [`WIDTH`] columns, the first with the indentation `first` and all others with `rest` spaces. A word
/// that is longer than a line has a line of its own.
pub fn wrap(text: &str, first: &str, rest: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = first.to_owned();
    let (mut columns, mut is_empty) = (columns(first), true);
    for word in text.split_whitespace() {
        let width = self::columns(word);
        if !is_empty && columns + 1 + width > WIDTH {
            lines.push(std::mem::replace(&mut line, " ".repeat(rest)));
            (columns, is_empty) = (rest, true);
        }
        if !is_empty {
            line.push(' ');
            columns += 1;
        }
        line.push_str(word);
        (columns, is_empty) = (columns + width, false);
    }
    lines.push(line);
    lines
}

/// Returns the number of columns of a text, without the sequences for colours.
pub fn columns(text: &str) -> usize {
    let (mut count, mut in_sequence) = (0, false);
    for character in text.chars() {
        match character {
            '\x1b' => in_sequence = true,
            'm' if in_sequence => in_sequence = false,
            _ if in_sequence => {}
            _ => count += 1,
        }
    }
    count
}

/// Returns how long something has lasted, as kubectl prints ages: `41s`, `12m`, `3h5m`, `2d4h`, `9d`.
pub fn age(since: Timestamp, now: Timestamp) -> String {
    let seconds = now.duration_since(since).as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let with = |count: i64, unit: char, rest: i64, of_rest: char| {
        if rest == 0 { format!("{count}{unit}") } else { format!("{count}{unit}{rest}{of_rest}") }
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..10_800 => format!("{minutes}m"),
        10_800..86_400 => with(hours, 'h', minutes % 60, 'm'),
        86_400..691_200 => with(days, 'd', hours % 24, 'h'),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_and_marks_depend_on_the_environment() {
        let of = |is_terminal, pairs: &[(&str, &str)]| {
            let value = |name: &str| pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
            let Screen { colour, unicode } = Screen::of(is_terminal, value);
            (colour, unicode)
        };
        let utf8 = ("LANG", "C.UTF-8");
        assert_eq!(of(true, &[("TERM", "xterm"), utf8]), (true, true));
        assert_eq!(of(false, &[("TERM", "xterm"), utf8]), (false, true));
        assert_eq!(of(true, &[("NO_COLOR", "1"), utf8]), (false, true));
        assert_eq!(of(true, &[("TERM", "dumb"), utf8]), (false, true));
        assert_eq!(of(true, &[("LC_ALL", "C"), utf8]), (true, false));
        assert_eq!(of(true, &[("LC_CTYPE", "de_DE.utf8")]), (true, true));
        assert_eq!(of(true, &[]), (true, false));
    }

    #[test]
    fn text_is_wrapped_between_words_and_colours_have_no_width() {
        let word = "0123456789";
        let text = [word; 9].join(" ");
        let lines = wrap(&text, "a: ", 3);
        assert_eq!(lines.len(), 2);
        assert_eq!((columns(&lines[0]), lines[1].as_str()), (79, "   0123456789 0123456789"));
        let long = "x".repeat(90);
        assert_eq!(wrap(&format!("a {long} b"), "", 2), ["a".to_owned(), format!("  {long}"), "  b".to_owned()]);
        assert_eq!(wrap("", "empty", 2), ["empty"]);
        let screen = Screen { colour: true, unicode: true };
        assert_eq!(columns(&screen.paint(Tone::Bad, "four")), 4);
        assert_eq!(columns(&screen.mark(Tone::Good)), 1);
    }

    #[test]
    fn ages_have_one_or_two_units() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (10_799, "179m"),
            (10_800, "3h"),
            (11_100, "3h5m"),
            (86_400, "1d"),
            (100_800, "1d4h"),
            (691_200, "8d"),
        ] {
            let now = start + k8s_openapi::jiff::SignedDuration::from_secs(seconds);
            assert_eq!(age(start, now), text, "{seconds}");
        }
    }
}
