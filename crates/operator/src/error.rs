//! Errors of the rim. Their class is a metric's label and says how soon to try again.

use std::time::Duration;

use strum::IntoStaticStr;
use thiserror::Error;

/// A write or read that the API server refused, or that did not reach it.
#[derive(Debug, Error)]
#[error("failed to {what}: {source}")]
pub struct Error {
    /// What was tried, such as `label node gpu-1`.
    pub what: String,
    /// What came of it.
    #[source]
    pub source: kube::Error,
}

/// Classes of errors.
#[derive(IntoStaticStr, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Our role lacks a right.
    Forbidden,
    /// Somebody else's write came first, or a key is somebody else's.
    Conflict,
    /// What was written to is gone.
    NotFound,
    /// The API server does not take the object as it is.
    Invalid,
    /// The API server said something else.
    Refused,
    /// The API server could not be reached.
    Unreachable,
}

impl Class {
    /// The word itself.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Error {
    /// The error's class.
    #[must_use]
    pub fn class(&self) -> Class {
        match &self.source {
            kube::Error::Api(status) if status.is_forbidden() => Class::Forbidden,
            kube::Error::Api(status) if status.is_conflict() => Class::Conflict,
            kube::Error::Api(status) if status.is_not_found() => Class::NotFound,
            kube::Error::Api(status) if status.is_invalid() => Class::Invalid,
            kube::Error::Api(_) => Class::Refused,
            _ => Class::Unreachable,
        }
    }

    /// How soon it is worth trying again: what only a person can mend is not tried every second.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self.class() {
            Class::Conflict | Class::NotFound => Duration::from_secs(1),
            Class::Unreachable | Class::Refused => Duration::from_secs(5),
            Class::Forbidden | Class::Invalid => Duration::from_secs(30),
        }
    }
}
