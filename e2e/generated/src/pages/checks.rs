//! The checks of `kubectl gpu-fleet check`, from their list.

use gpu_operator_cli::check::list::{CHECKS, Severity, Stage};

use super::page::Page;
use crate::file::Generated;

/// The file to edit instead of the page.
const SOURCE: &str = "crates/cli/src/check/list.rs";

pub(super) fn page() -> Generated {
    let mut page = Page::new("checks", SOURCE, "Checks");
    page.block(
        "`kubectl gpu-fleet check --pre` checks whether the cluster is ready for the chart; without `--pre`, whether the installation is whole. \
         Both change nothing. What policies, nodes and GPUs report is shown by `kubectl gpu-fleet status`.",
    );
    page.list([
        "`--operator-namespace NAME` is the namespace of the operator. Defaults to `gpu-operator`.".to_owned(),
        "`--output json` prints `success`, and in `checks[]` the `code`, `result`, `finding` and `fix` of each check. Codes are stable.".to_owned(),
    ]);
    page.block(
        "A check that does not pass has the result `Failed` if its severity is error, otherwise `Warning`. The exit code is 1 if a check has \
         failed. A check is `Skipped` if there is nothing to judge, or if you lack the right to read what it needs; then it names the right.",
    );
    for (stages, heading) in [
        (&[Stage::Before, Stage::Always][..], "Before the installation"),
        (&[Stage::After][..], "After the installation"),
    ] {
        page.heading(2, heading);
        for check in CHECKS.iter().filter(|check| stages.contains(&check.stage)) {
            page.heading(3, check.code);
            let severity = match check.severity {
                Severity::Error => "error",
                Severity::Warning => "warning",
            };
            let also = if check.stage == Stage::Always { ", also after the installation" } else { "" };
            page.block(&format!("Severity {severity}{also}: {}.", check.title));
            page.list([
                format!("Looks at: {}", check.looks_at),
                format!("Why: {}", check.matters),
                format!("What to do: {}", check.remedy),
            ]);
        }
    }
    page.end()
}
