//! What tests of several commands share: a screen, and an answer.

use serde_json::{Value, json};

use crate::output::{Screen, WIDTH, columns};

/// The screen of snapshots.
pub const SCREEN: Screen = Screen { colour: false, unicode: true };

/// Returns the answer to a request for the version.
pub fn version(version: &str) -> Value {
    json!({
        "major": "1", "minor": "36", "gitVersion": version, "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "",
        "compiler": "", "platform": "",
    })
}

/// Asserts that no line is too long, except one with a single word.
pub fn assert_narrow(text: &str) {
    let is_long = |line: &&str| columns(line) > WIDTH && line.trim_start().contains(' ');
    assert_eq!(text.lines().find(is_long), None, "{text}");
}
