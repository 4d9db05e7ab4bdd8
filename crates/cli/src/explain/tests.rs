//! Explanations of simulated nodes and pods, as they are printed.

mod node;
mod pod;

use crate::screen::{WIDTH, columns};

/// Asserts that no line is too long, except one with a single word.
fn assert_narrow(text: &str) {
    let is_long = |line: &&str| columns(line) > WIDTH && line.trim_start().contains(' ');
    assert_eq!(text.lines().find(is_long), None, "{text}");
}
