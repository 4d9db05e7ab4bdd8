//! Checks and tests the alerts with promtool, as packaged by Debian, without a cluster. To run it:
//! `cargo test -p e2e --test alerts`. The chart's test `alerts_and_dashboard_are_rendered_unchanged_from_their_files` compares
//! the rendered rules with the file that is checked here.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::{path::Path, process::Command};

use harness::debian::promtool;

/// Runs promtool on a file of this checkout.
fn check(args: [&str; 2], file: &str) {
    let promtool = promtool().unwrap_or_else(|error| panic!("{error:#}"));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let output = Command::new(promtool).args(args).arg(file).output().expect("promtool");
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success() && out.contains("SUCCESS"), "{out}{error}");
}

#[test]
fn the_rules_are_valid() {
    check(["check", "rules"], "charts/gpu-operator/monitoring/alerts.yaml");
}

#[test]
fn every_alert_fires_when_it_should_and_only_then() {
    check(["test", "rules"], "e2e/checks/tests/monitoring/alerts.test.yaml");
}
