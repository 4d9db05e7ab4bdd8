//! Errors of the rim. Their class is a metric's label and says how soon to try again.

use std::time::Duration;

use strum::IntoStaticStr;
use thiserror::Error;

/// How long a request may take before it counts as lost: a connection that hangs must not hold up the fleet.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// A write or read that the API server refused, or that did not reach it.
#[derive(Debug, Error)]
pub enum Error {
    /// It failed.
    #[error("failed to {what}: {}", words(source))]
    Failed {
        /// What was tried, such as `label node gpu-1`.
        what: String,
        /// What came of it.
        #[source]
        source: kube::Error,
    },
    /// No answer came.
    #[error("failed to {what}: no answer within {} s", REQUEST_DEADLINE.as_secs())]
    NoAnswer {
        /// What was tried.
        what: String,
    },
}

/// The API server's own words, without the rest of its answer.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

/// Makes a request, for so long as it may take.
///
/// # Errors
/// [`Error`], with `what` was tried.
pub async fn request<T>(what: String, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_DEADLINE, request).await {
        Ok(answer) => answer.map_err(|source| Error::Failed { what, source }),
        Err(_) => Err(Error::NoAnswer { what }),
    }
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
        let Self::Failed { source, .. } = self else {
            return Class::Unreachable;
        };
        match source {
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
