//! Versions of numbers between dots, such as a driver's `580.173.02`, and the version of this program.

use std::{cmp::Ordering, str::FromStr};

use thiserror::Error;

/// A version: numbers, the most significant first. Numbers that are absent compare as zero, so that `1.2` equals `1.2.0`.
#[derive(Clone, Debug)]
pub struct Version {
    major: u32,
    rest: Vec<u32>,
}

#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[error("\"{0}\" is not a version; a version has numbers between dots, such as 580.173.02")]
pub struct InvalidVersion(String);

impl Version {
    /// Returns the version that a text begins with, after an optional `v`: 1.7.27 of `v1.7.27-k3s1`. None if it begins with no
    /// number.
    pub fn leading(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let mut numbers = text[..end].split('.').map_while(number);
        Some(Self { major: numbers.next()?, rest: numbers.collect() })
    }

    /// Returns the first number.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Returns the second number, if there is one.
    pub fn minor(&self) -> Option<u32> {
        self.rest.first().copied()
    }

    /// Returns how many numbers the version has; at least one.
    pub fn parts(&self) -> usize {
        1 + self.rest.len()
    }
}

/// Parses a text that is a version from end to end.
impl FromStr for Version {
    type Err = InvalidVersion;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.split('.').map(number);
        let version = numbers.next().flatten().zip(numbers.collect::<Option<_>>());
        version.map(|(major, rest)| Self { major, rest }).ok_or_else(|| InvalidVersion(text.to_owned()))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |version: &Self, at: usize| version.rest.get(at).copied().unwrap_or_default();
        let rest = 0..self.rest.len().max(other.rest.len());
        let rest = rest.map(|at| number(self, at).cmp(&number(other, at)));
        self.major.cmp(&other.major).then_with(|| rest.fold(Ordering::Equal, Ordering::then))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

/// Digits only: `parse` alone would take a sign.
fn number(part: &str) -> Option<u32> {
    part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok()).flatten()
}

/// Returns whether a driver's version is the given one, or belongs to the given branch (`580`), which is all that is known of a
/// precompiled driver.
pub fn is_release_of(version: &str, wanted: &str) -> bool {
    version.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || !wanted.contains('.') && rest.starts_with('.'))
}

/// The version of the product, and the revision of its sources: the environment variable `GPU_OPERATOR_REVISION` at build
/// time, such as `GPU_OPERATOR_REVISION=$(git rev-parse HEAD) cargo build --release`.
pub const BUILD_LABELS: [(&str, &str); 2] = [
    ("version", env!("CARGO_PKG_VERSION")),
    (
        "revision",
        match option_env!("GPU_OPERATOR_REVISION") {
            Some(revision) => revision,
            None => "unknown",
        },
    ),
];

#[cfg(test)]
mod tests {
    use Ordering::{Equal, Greater, Less};

    use super::*;

    fn parsed(text: &str) -> Version {
        text.parse().unwrap()
    }

    #[test]
    fn versions_compare_by_number_and_not_by_letter() {
        for (a, b, expected) in [
            ("580.173.02", "580.173.2", Equal),
            ("580.95.05", "580.173.02", Less),
            ("12.8", "12.8.0", Equal),
            ("12", "11.8", Greater),
            ("12.8.1", "12.8", Greater),
            ("9", "10", Less),
            ("1.2.3", "1.3.2", Less),
        ] {
            assert_eq!(parsed(a).cmp(&parsed(b)), expected, "{a} and {b}");
            assert_eq!(parsed(b).cmp(&parsed(a)), expected.reverse(), "{b} and {a}");
        }
    }

    #[test]
    fn a_version_has_numbers_between_dots_and_nothing_else() {
        let version = parsed("580.173.02");
        assert_eq!((version.major(), version.minor(), version.parts()), (580, Some(173), 3));
        let version = parsed("580");
        assert_eq!((version.major(), version.minor(), version.parts()), (580, None, 1));
        for text in ["", ".", "1.", ".1", "1..2", "v1.2", "1.2-rc1", "1.+2", "latest", "1.99999999999"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
        assert_eq!(
            "latest".parse::<Version>().unwrap_err().to_string(),
            "\"latest\" is not a version; a version has numbers between dots, such as 580.173.02"
        );
    }

    #[test]
    fn the_version_that_a_text_begins_with_is_found() {
        for (text, expected) in [
            ("v1.7.27-k3s1", Some("1.7.27")),
            ("2.1.4", Some("2.1.4")),
            ("1.7.27~ds1", Some("1.7.27")),
            ("1.34.x", Some("1.34")),
            ("580", Some("580")),
            ("", None),
            ("latest", None),
            ("v", None),
            (".5", None),
        ] {
            assert_eq!(Version::leading(text), expected.map(parsed), "{text}");
        }
    }
}
