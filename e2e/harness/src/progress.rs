//! What a command prints: headings, and the progress of steps that take long.

/// Prints a line to standard output. Unlike `println!` it does not panic when the reader is gone (`cargo xtask up | head`),
/// which would leave half a cluster behind.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Prints a line to standard error, as [`outln!`] does to standard output.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

use std::{
    io::{IsTerminal, Write},
    sync::Mutex,
    time::{Duration, Instant},
};

/// How often a running step prints a line if the output is not a terminal.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// One step. It is printed when it starts, while it runs and when it ends.
pub struct Step {
    name: String,
    started: Instant,
    shown: Mutex<Instant>,
    terminal: bool,
}

impl Step {
    pub fn start(name: impl Into<String>) -> Self {
        let step = Self {
            name: name.into(),
            started: Instant::now(),
            shown: Mutex::new(Instant::now()),
            terminal: std::io::stdout().is_terminal(),
        };
        if step.terminal {
            rewrite(&format!("  … {}", step.name));
        } else {
            outln!("  … {}", step.name);
        }
        step
    }

    /// Shows that the step is still running, with `detail` on its progress. Calls that come too soon after another print
    /// nothing.
    pub fn tick(&self, detail: &str) {
        let Ok(mut shown) = self.shown.lock() else { return };
        let pause = if self.terminal { Duration::from_secs(1) } else { HEARTBEAT };
        if shown.elapsed() < pause {
            return;
        }
        *shown = Instant::now();
        let line = format!("  … {} ({}) {detail}", self.name, elapsed(self.started.elapsed()));
        if self.terminal {
            rewrite(&line.chars().take(110).collect::<String>());
        } else {
            outln!("{}", line.trim_end());
        }
    }

    /// Prints a line below the step that is not overwritten.
    pub fn print(&self, line: &str) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        outln!("{start}    {:>5} {line}", elapsed(self.started.elapsed()));
    }

    /// Ends the step as successful.
    pub fn done(self) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        outln!("{start}  ✓ {} ({})", self.name, elapsed(self.started.elapsed()));
    }
}

/// Prints the heading of a group of steps.
pub fn heading(text: &str) {
    outln!("▸ {text}");
}

/// Formats a duration for people, such as `2.3s` or `2m05s`.
pub fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 10 {
        format!("{:.1}s", time.as_secs_f64())
    } else if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    }
}

/// Overwrites the line that the cursor is on.
fn rewrite(line: &str) {
    let mut out = std::io::stdout();
    // A closed terminal is not an error.
    let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
}
