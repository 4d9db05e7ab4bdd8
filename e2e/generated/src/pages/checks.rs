//! The checks of `kubectl gpu-fleet check`, from their explanations.

use gpu_operator_cli::check::code::{Category, Check, Stage};
use strum::IntoEnumIterator;

use super::page::{Page, code};
use crate::file::Generated;

/// The file to edit instead of the pages.
const SOURCE: &str = "crates/cli/src/check/reference.rs";

pub(super) fn pages() -> [Generated; 2] {
    let mut page = Page::new("checks", SOURCE, Check::KubernetesVersion.page_title());
    page.block(
        "`kubectl gpu-fleet check --pre` makes these checks in a cluster where the chart is not installed yet. Without `--pre`, it makes all of \
         them that do not say otherwise, and those of [Checks of the installation](checks-installed.md). It changes nothing.",
    );
    page.list([
        "`--category NAME` makes only the checks of a category, and may be repeated.".to_owned(),
        "`--operator-namespace NAME` is the namespace of the operator. Defaults to `gpu-operator`.".to_owned(),
        "`--output json` prints `success`, and in `categories[].checks[]` the `code`, `result`, `finding`, `fix` and `page` of each check. Codes \
         are stable."
            .to_owned(),
    ]);
    page.block(
        "A check that does not pass has the result `Failed` if its severity is error, otherwise `Warning`. The exit code is 1 if a check has \
         failed. A check is `Skipped` if there is nothing to judge, or if you lack the right to read what it needs; then it names the right.",
    );
    add(&mut page, |stage| stage != Stage::After);
    let mut installed = Page::new("checks-installed", SOURCE, Check::OperatorAvailable.page_title());
    installed.block(
        "`kubectl gpu-fleet check` makes these checks, and most of [Checks before the installation](checks.md), which describes options and \
         results.",
    );
    add(&mut installed, |stage| stage == Stage::After);
    [page.end(), installed.end()]
}

/// Adds the checks of some stages, by category.
fn add(page: &mut Page, is_wanted: impl Fn(Stage) -> bool) {
    for category in Category::iter() {
        let checks: Vec<Check> =
            Check::iter().filter(|check| check.category() == category && is_wanted(check.stage())).collect();
        if checks.is_empty() {
            continue;
        }
        page.heading(2, category.title());
        page.block(&format!("Category {}.", code(category.name())));
        for check in checks {
            page.heading(3, check.code());
            let only = if check.stage() == Stage::Before { ", only with `--pre`" } else { "" };
            page.block(&format!("Severity {}{only}: {}.", check.severity().name(), check.title()));
            let text = check.explanation();
            page.list([
                format!("Looks at: {}", text.looks_at),
                format!("Why: {}", text.matters),
                format!("What to do: {}", text.remedy),
            ]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_a_heading_on_the_page_that_it_names() {
        let pages = pages();
        for check in Check::iter() {
            let path = format!("docs/reference/{}.md", check.page());
            let page = pages.iter().find(|page| page.path == path).expect("a page");
            assert!(page.text.contains(&format!("\n### {}\n", check.code())), "{}", check.code());
            assert!(page.text.contains(&format!("\n# {}\n", check.page_title())), "{}", check.code());
        }
    }
}
