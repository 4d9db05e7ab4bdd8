//! Failures of writes as plain data: what decides how soon a write is attempted again, and what is reported.

use std::time::Duration;

use strum::IntoStaticStr;

/// The failure of a write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Failure {
    pub class: Class,
    /// The message, with the action and the object.
    pub message: String,
}

/// Classes of errors.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// The operator's role lacks a permission.
    Forbidden,
    /// Another write came first, or another manager owns a field.
    Conflict,
    /// The object does not exist.
    NotFound,
    /// The API server considers the object invalid.
    Invalid,
    /// The API server does not carry it out at present: a PodDisruptionBudget forbids an eviction, or there are too many requests.
    TooManyRequests,
    /// The API server returned any other error.
    Refused,
    /// The API server could not be reached.
    Unreachable,
}

impl Class {
    /// Returns the name, such as `Forbidden`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Returns whether only a person can fix the error.
    pub fn lasts(self) -> bool {
        matches!(self, Self::Forbidden | Self::Invalid)
    }

    /// Returns the longest pause between two attempts.
    pub fn retry_within(self) -> Duration {
        Duration::from_mins(if self == Self::TooManyRequests { 1 } else { 5 })
    }

    /// Returns how soon to retry: errors that only a person can fix are not retried every second.
    pub fn retry_after(self) -> Duration {
        match self {
            Self::Conflict | Self::NotFound => Duration::from_secs(1),
            Self::Unreachable | Self::Refused | Self::TooManyRequests => Duration::from_secs(5),
            Self::Forbidden | Self::Invalid => Duration::from_secs(30),
        }
    }
}
