//! The report of all checks, as it is printed.

use serde::Serialize;
use strum::IntoEnumIterator;

use crate::{
    check::{
        code::{Category, Check, Severity},
        facts::Facts,
        judge::judge,
        judgement::Judgement,
    },
    context::Outcome,
    read::ReadError,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether no check has failed. Warnings are no failures.
    pub success: bool,
    /// The checks by category.
    pub categories: Vec<OfCategory>,
}

impl Report {
    /// Returns how the command ends.
    pub fn outcome(&self) -> Outcome {
        if self.success { Outcome::Good } else { Outcome::Bad }
    }
}

/// The checks of a category.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OfCategory {
    pub name: Category,
    pub checks: Vec<Checked>,
}

/// A check with its result.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    pub code: Check,
    pub result: CheckResult,
    /// What was found, or why the check was skipped.
    pub finding: String,
    /// What to do. Absent if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
    /// The title of the page of the documentation that lists the check by its code.
    pub page: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum CheckResult {
    Passed,
    /// It does not pass, and something may not work as expected.
    Warning,
    /// It does not pass, and something does not work.
    Failed,
    /// It could not be made, or had nothing to judge.
    Skipped,
}

/// Returns the report of the checks before or after the installation. Without categories, all are included.
pub fn report(facts: &Facts, before: bool, categories: &[Category]) -> Report {
    let is_wanted = |category: &Category| categories.is_empty() || categories.contains(category);
    let of_category = |category: Category| {
        let checks = Check::iter().filter(|check| check.category() == category && check.applies(before));
        OfCategory { name: category, checks: checks.map(|check| checked(check, facts)).collect() }
    };
    let categories: Vec<OfCategory> = Category::iter().filter(is_wanted).map(of_category).collect();
    let categories: Vec<OfCategory> = categories.into_iter().filter(|category| !category.checks.is_empty()).collect();
    let failed =
        categories.iter().flat_map(|category| &category.checks).any(|check| check.result == CheckResult::Failed);
    Report { success: !failed, categories }
}

/// Returns a check with its result.
fn checked(check: Check, facts: &Facts) -> Checked {
    let (result, finding, fix) = match judge(check, facts) {
        Ok(Judgement::Good(finding)) => (CheckResult::Passed, finding, None),
        Ok(Judgement::Skipped(why)) => (CheckResult::Skipped, why, None),
        Ok(Judgement::Bad { finding, fix }) => {
            let result = match check.severity() {
                Severity::Error => CheckResult::Failed,
                Severity::Warning => CheckResult::Warning,
            };
            (result, finding, Some(fix))
        }
        Err(error) => {
            let (finding, fix) = unread(error);
            (CheckResult::Skipped, finding, fix)
        }
    };
    Checked { code: check, result, finding, fix, page: check.page_title() }
}

/// Returns why facts are missing, and what to do.
fn unread(error: &ReadError) -> (String, Option<String>) {
    match error {
        ReadError::Forbidden(right) => {
            let fix = "run this as a user with the rights; the ClusterRole nodestack-gpu-operator-cli of the chart contains them";
            (format!("the right to {right} is missing"), Some(fix.to_owned()))
        }
        ReadError::NotInstalled(resource) => (format!("the cluster does not have the resource {resource}"), None),
        ReadError::Unreachable(_) | ReadError::Rejected(..) => (error.to_string(), None),
    }
}
