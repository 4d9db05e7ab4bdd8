//! The report of all checks, and its text.

use serde::Serialize;

use crate::{
    check::{
        facts::{Facts, Judgement},
        list::{CHECKS, Check, Severity},
    },
    context::Outcome,
    output::{Screen, Tone, WIDTH, columns, wrap},
    read::ReadError,
};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Report {
    /// Whether no check has failed. Warnings are no failures.
    pub success: bool,
    pub checks: Vec<Checked>,
}

impl Report {
    pub fn outcome(&self) -> Outcome {
        if self.success { Outcome::Good } else { Outcome::Bad }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Checked {
    pub code: &'static str,
    #[serde(skip)]
    pub title: &'static str,
    pub result: CheckResult,
    /// What was found, or why the check was skipped.
    pub finding: String,
    /// What to do. Absent if there is nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
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

/// Returns the report of the checks before or after the installation.
pub fn report(facts: &Facts) -> Report {
    let checks = CHECKS.iter().filter(|check| check.applies(facts.before));
    let checks: Vec<Checked> = checks.map(|check| checked(check, facts)).collect();
    Report { success: checks.iter().all(|check| check.result != CheckResult::Failed), checks }
}

fn checked(check: &Check, facts: &Facts) -> Checked {
    let (result, finding, fix) = match (check.judge)(facts) {
        Ok(Judgement::Good(finding)) => (CheckResult::Passed, finding, None),
        Ok(Judgement::Skipped(why)) => (CheckResult::Skipped, why, None),
        Ok(Judgement::Bad { finding, fix }) => {
            let result = match check.severity {
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
    Checked { code: check.code, title: check.title, result, finding, fix }
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

const INDENT: usize = 4;

pub fn text(report: &Report, screen: Screen) -> String {
    let mut lines = Vec::new();
    for check in &report.checks {
        add(&mut lines, check, screen);
    }
    lines.push(String::new());
    // The same for all of them.
    let mut skipped = report.checks.iter().filter(|check| check.result == CheckResult::Skipped);
    if let Some(fix) = skipped.find_map(|check| check.fix.as_ref()) {
        lines.extend(wrap(&format!("For skipped checks: {fix}"), "", 0));
    }
    lines.push(sum(report));
    lines.join("\n") + "\n"
}

fn add(lines: &mut Vec<String>, check: &Checked, screen: Screen) {
    let tone = match check.result {
        CheckResult::Passed => Tone::Good,
        CheckResult::Warning => Tone::Warning,
        CheckResult::Failed => Tone::Bad,
        CheckResult::Skipped => Tone::Quiet,
    };
    let (mark, title) = (screen.mark(tone), check.title);
    match check.result {
        CheckResult::Passed => lines.extend(wrap(&format!("{title}: {}", check.finding), &format!("{mark} "), INDENT)),
        CheckResult::Skipped => {
            lines.extend(wrap(&format!("{title}: skipped: {}", check.finding), &format!("{mark} "), INDENT));
        }
        CheckResult::Warning | CheckResult::Failed => {
            lines.push(format!("{mark} {title}"));
            let indent = " ".repeat(INDENT);
            lines.extend(wrap(&check.finding, &indent, INDENT));
            if let Some(fix) = &check.fix {
                lines.extend(fix_lines(fix, &indent));
            }
            lines.push(screen.paint(Tone::Quiet, &format!("{indent}See: {} in Checks", check.code)));
        }
    }
}

/// Returns the lines of a fix. The lines of a command can be copied into a shell.
fn fix_lines(fix: &str, indent: &str) -> Vec<String> {
    const BREAK: &str = " \\";
    if !fix.starts_with("kubectl ") {
        return wrap(&format!("Fix: {fix}"), indent, INDENT);
    }
    let mut lines = vec![format!("{indent}Fix:")];
    for word in fix.split_whitespace() {
        match lines.last_mut() {
            Some(line) if columns(line) + 1 + columns(word) + columns(BREAK) <= WIDTH => {
                line.push(' ');
                line.push_str(word);
            }
            last => {
                if let Some(line) = last {
                    line.push_str(BREAK);
                }
                lines.push(format!("{indent}  {word}"));
            }
        }
    }
    lines
}

fn sum(report: &Report) -> String {
    let number = |result: CheckResult| report.checks.iter().filter(|check| check.result == result).count();
    let warnings = number(CheckResult::Warning);
    let noun = if warnings == 1 { "warning" } else { "warnings" };
    format!(
        "{} checks: {} passed, {warnings} {noun}, {} failed, {} skipped",
        report.checks.len(),
        number(CheckResult::Passed),
        number(CheckResult::Failed),
        number(CheckResult::Skipped)
    )
}
