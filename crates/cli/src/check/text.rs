//! The report as text.

use crate::{
    check::report::{CheckResult, Checked, Report},
    screen::{Screen, Tone, WIDTH, columns, wrap},
};

/// The indentation of the details of a check.
const INDENT: usize = 4;

pub fn text(report: &Report, screen: Screen) -> String {
    let mut lines = Vec::new();
    for category in &report.categories {
        lines.push(screen.paint(Tone::Strong, category.name.title()));
        for check in &category.checks {
            add(&mut lines, check, screen);
        }
        lines.push(String::new());
    }
    // The same for all of them.
    let checks = report.categories.iter().flat_map(|category| &category.checks);
    let mut unread = checks.filter(|check| check.result == CheckResult::Skipped).filter_map(|check| check.fix.as_ref());
    if let Some(fix) = unread.next() {
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
    let (mark, title) = (screen.mark(tone), check.code.title());
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
            lines.push(screen.paint(Tone::Quiet, &format!("{indent}See: {} in {}", check.code.code(), check.page)));
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

/// Returns the numbers of checks by result.
fn sum(report: &Report) -> String {
    let checks = || report.categories.iter().flat_map(|category| &category.checks);
    let number = |result: CheckResult| checks().filter(|check| check.result == result).count();
    let warnings = number(CheckResult::Warning);
    let noun = if warnings == 1 { "warning" } else { "warnings" };
    format!(
        "{} checks: {} passed, {warnings} {noun}, {} failed, {} skipped",
        checks().count(),
        number(CheckResult::Passed),
        number(CheckResult::Failed),
        number(CheckResult::Skipped)
    )
}
