//! The result of a check.

use crate::read::ReadError;

/// The result of a check whose facts are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// It passes; what was found.
    Good(String),
    /// It does not pass.
    Bad {
        /// What was found.
        finding: String,
        /// What to do.
        fix: String,
    },
    /// There is nothing to judge; the reason.
    Skipped(String),
}

/// The result of a check, or why facts that it needs cannot be read.
pub type Judged<'f> = Result<Judgement, &'f ReadError>;

/// Returns the result of a check that passes.
#[expect(clippy::unnecessary_wraps, reason = "the result of a check")]
pub fn good<'f>(finding: impl Into<String>) -> Judged<'f> {
    Ok(Judgement::Good(finding.into()))
}

/// Returns the result of a check that does not pass.
#[expect(clippy::unnecessary_wraps, reason = "the result of a check")]
pub fn bad<'f>(finding: impl Into<String>, fix: impl Into<String>) -> Judged<'f> {
    Ok(Judgement::Bad { finding: finding.into(), fix: fix.into() })
}

/// Returns the result of a check that has nothing to judge.
#[expect(clippy::unnecessary_wraps, reason = "the result of a check")]
pub fn skipped<'f>(why: impl Into<String>) -> Judged<'f> {
    Ok(Judgement::Skipped(why.into()))
}

/// The maximum number of names in a finding.
const MAX_NAMES: usize = 5;

/// Returns the first names, and how many more there are.
pub fn listed<T: AsRef<str>>(names: &[T]) -> String {
    let shown: Vec<&str> = names.iter().take(MAX_NAMES).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(MAX_NAMES) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// Returns the first messages, and how many more there are.
pub fn messages(found: &[String]) -> String {
    const MAX: usize = 3;
    let shown = found.iter().take(MAX).cloned().collect::<Vec<_>>().join("; ");
    match found.len().saturating_sub(MAX) {
        0 => shown,
        more => format!("{shown}; and {more} more"),
    }
}

/// Returns a number with its noun: `1 node`, `2 nodes`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}
