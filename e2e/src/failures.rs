//! What failed in a run of tests, in a few lines for each: said last, where it is still seen when only the end of a long
//! output is kept.

/// Lines of a failed test's own words that are repeated.
const LINES: usize = 12;
/// Characters of such a line.
const WIDTH: usize = 400;
/// With this line a test begins to show the cluster; what went wrong stands before it.
pub const CLUSTER: &str = "--- the cluster";
/// Begins what follows an error where backtraces are asked for.
const BACKTRACE: &str = "Stack backtrace:";

/// The failed tests in what `cargo test` printed, each with the first lines of what it said.
pub(crate) fn failures(output: &str) -> Vec<String> {
    let mut failures = Vec::new();
    // What tests that passed have said may come before.
    let mut lines = output.lines().peekable();
    let mut failed = false;
    while let Some(line) = lines.next() {
        failed = failed && line != "successes:" || line == "failures:";
        let Some(test) = heading(line).filter(|_| failed) else { continue };
        let mut words = vec![test.to_owned()];
        while let Some(said) = lines.next_if(|line| !ends(line)) {
            if said == CLUSTER || said == BACKTRACE {
                break;
            }
            if !said.trim().is_empty() && words.len() <= LINES {
                words.push(format!("    {}", said.chars().take(WIDTH).collect::<String>()));
            }
        }
        failures.push(words.join("\n"));
    }
    failures
}

/// The test whose words follow a line.
fn heading(line: &str) -> Option<&str> {
    line.strip_prefix("---- ")?.strip_suffix(" stdout ----")
}

/// Whether a line is no longer of what a failed test has said.
fn ends(line: &str) -> bool {
    line == "failures:" || heading(line).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_failed_test_is_told_with_its_own_first_words() {
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


failures:
    a::breaks
    b::breaks

test result: FAILED. 1 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 1.00s
";
        let expected = [
            "a::breaks\n    thread 'a::breaks' (7) panicked at tests/a.rs:30:9:\n    a ready node: not within 60 s\n    \
             Caused by:\n        Driver Pulling",
            "b::breaks\n    no status",
        ];
        assert_eq!(failures(output), expected);
        assert_eq!(failures("test a ... ok\n"), Vec::<String>::new());
    }

    #[test]
    fn a_test_that_says_much_is_cut() {
        let output = format!("failures:\n---- a stdout ----\n{}", format!("{}\n", "x".repeat(9_999)).repeat(99));
        let told = failures(&output).remove(0);
        assert_eq!(told.lines().count(), LINES + 1);
        assert!(told.len() < (LINES + 1) * (WIDTH + 10), "{}", told.len());
    }
}
