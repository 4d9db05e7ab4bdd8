//! What a person sees while something takes long.

/// Prints a line. Unlike `println!` it does not panic when nobody reads any more (`cargo xtask up | head`): a cluster
/// half up would stay behind.
macro_rules! say {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// Like `say!`, to standard error.
macro_rules! warn {
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

/// How often a step says that it is still alive where the output is not a terminal.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// One step, printed when it starts, while it runs and when it ends.
pub(crate) struct Step {
    what: String,
    started: Instant,
    shown: Mutex<Instant>,
    terminal: bool,
}

impl Step {
    /// Starts a step.
    pub(crate) fn start(what: impl Into<String>) -> Self {
        let step = Self {
            what: what.into(),
            started: Instant::now(),
            shown: Mutex::new(Instant::now()),
            terminal: std::io::stdout().is_terminal(),
        };
        if step.terminal {
            rewrite(&format!("  … {}", step.what));
        } else {
            say!("  … {}", step.what);
        }
        step
    }

    /// Shows that the step goes on; `detail` may say how far it is. Call it as often as you like.
    pub(crate) fn tick(&self, detail: &str) {
        let Ok(mut shown) = self.shown.lock() else { return };
        let pause = if self.terminal { Duration::from_secs(1) } else { HEARTBEAT };
        if shown.elapsed() < pause {
            return;
        }
        *shown = Instant::now();
        let line = format!("  … {} ({}) {detail}", self.what, elapsed(self.started.elapsed()));
        if self.terminal {
            rewrite(&line.chars().take(110).collect::<String>());
        } else {
            say!("{}", line.trim_end());
        }
    }

    /// Prints a line that stays, under the step.
    pub(crate) fn say(&self, line: &str) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        say!("{start}    {:>5} {line}", elapsed(self.started.elapsed()));
    }

    /// Ends the step well.
    pub(crate) fn done(self) {
        let start = if self.terminal { "\r\x1b[K" } else { "" };
        say!("{start}  ✓ {} ({})", self.what, elapsed(self.started.elapsed()));
    }
}

/// Prints the heading of a group of steps.
pub(crate) fn heading(what: &str) {
    say!("▸ {what}");
}

/// A duration as a person reads it.
pub(crate) fn elapsed(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 10 {
        format!("{:.1}s", time.as_secs_f64())
    } else if seconds < 60 {
        format!("{seconds}s")
    } else {
        format!("{}m{:02}s", seconds / 60, seconds % 60)
    }
}

/// Writes over the line that the cursor is in.
fn rewrite(line: &str) {
    let mut out = std::io::stdout();
    // A closed terminal is no reason to stop.
    let _ = write!(out, "\r\x1b[K{line}").and_then(|()| out.flush());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_reads_as_a_person_says_it() {
        assert_eq!(elapsed(Duration::from_millis(2_340)), "2.3s");
        assert_eq!(elapsed(Duration::from_secs(59)), "59s");
        assert_eq!(elapsed(Duration::from_secs(125)), "2m05s");
    }
}
