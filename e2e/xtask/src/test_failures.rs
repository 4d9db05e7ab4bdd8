//! A summary of failed tests, a few lines for each. It is printed last, because often only the end of a long output is kept.

use cluster::diagnosis::HEADING;

/// The maximum number of lines of a failed test's output in the summary.
const MAX_LINES: usize = 12;
/// The maximum number of characters of such a line.
const MAX_WIDTH: usize = 400;
/// The beginning of a random test's line with the command that repeats it.
const AGAIN: &str = "Again: ";
/// The beginning of its line before the shrunk input, and the maximum number of lines of the two. What it printed in between is about
/// larger inputs.
const SHRUNK: &str = "Test failed: ";
const MAX_SHRUNK_LINES: usize = 150;
/// The line between an error and its backtrace.
const BACKTRACE: &str = "Stack backtrace:";

/// The line of cargo about a test program that ended without a result, and what it contains if a signal ended the program.
const ENDED: &str = "process didn't exit successfully: ";
const BY_SIGNAL: &str = "(signal: ";

/// Returns the failed tests in the output of `cargo test`, each with the first lines of its output, and the test programs that a signal has
/// ended, such as one without memory.
pub(super) fn summarize(output: &str) -> Vec<String> {
    let mut failures = Vec::new();
    // The output of successful tests may come before.
    let mut lines = output.lines().peekable();
    let mut failed = false;
    while let Some(line) = lines.next() {
        failed = failed && line != "successes:" || line == "failures:";
        if line.trim_start().starts_with(ENDED) && line.contains(BY_SIGNAL) {
            failures.push(line.trim_start().to_owned());
        }
        let Some(test) = heading(line).filter(|_| failed) else { continue };
        let (mut summary, mut most) = (vec![test.to_owned()], MAX_LINES);
        while let Some(line) = lines.next_if(|line| !is_end(line)) {
            if line == HEADING || line == BACKTRACE {
                break;
            }
            if line.starts_with(SHRUNK) {
                summary.retain(|line| line == test || line.trim_start().starts_with(AGAIN));
                most = MAX_SHRUNK_LINES;
            }
            if !line.trim().is_empty() && summary.len() <= most {
                summary.push(format!("    {}", line.chars().take(MAX_WIDTH).collect::<String>()));
            }
        }
        failures.push(summary.join("\n"));
    }
    failures
}

/// Returns the test whose output follows a line.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Returns whether a line is after the end of a failed test's output.
fn is_end(line: &str) -> bool {
    line == "failures:" || heading(line).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_test_is_listed_with_its_first_lines_of_output() {
        let output = "
running 3 tests
test a::works ... ok
test a::breaks ... FAILED
test b::breaks ... FAILED

successes:

---- a::works stdout ----
clean after 3 s


successes:
    a::works

failures:

---- a::breaks stdout ----

thread 'a::breaks' (7) panicked at tests/a.rs:30:9:
a ready node: not within 60 s

Caused by:
    Driver Pulling
--- the cluster
NAME    STATUS

---- b::breaks stdout ----
no status

Stack backtrace:
   0: std::rt

---- c::breaks stdout ----
Again: SEED=3 cargo test

thread 'c::breaks' (8) panicked at tests/c.rs:7:9:
three nodes

thread 'c::breaks' (8) panicked at tests/c.rs:1:1:
Test failed: one node.
minimal failing input: nodes = 1


failures:
    a::breaks
    b::breaks

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";
        let expected = [
            "a::breaks\n    thread 'a::breaks' (7) panicked at tests/a.rs:30:9:\n    a ready node: not within 60 s\n    \
             Caused by:\n        Driver Pulling",
            "b::breaks\n    no status",
            "c::breaks\n    Again: SEED=3 cargo test\n    Test failed: one node.\n    minimal failing input: nodes = 1",
        ];
        assert_eq!(summarize(output), expected);
        assert_eq!(summarize("test a ... ok\n"), Vec::<String>::new());
    }

    #[test]
    fn a_program_that_a_signal_has_ended_is_listed() {
        let ended = |how: &str| format!("process didn't exit successfully: `/a/deps/probe-1` ({how})");
        let output = |how: &str| format!("test a ... ok\nerror: test failed\n\nCaused by:\n  {}\n", ended(how));
        let killed = "signal: 9, SIGKILL: kill";
        assert_eq!(summarize(&output(killed)), [ended(killed)]);
        // Its failed tests are listed.
        assert_eq!(summarize(&output("exit status: 101")), Vec::<String>::new());
    }
}
