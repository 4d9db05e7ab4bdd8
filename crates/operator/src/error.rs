//! Errors of requests to the API server. Their class is a label value of a metric and determines how soon to retry.

use std::time::Duration;

use strum::IntoStaticStr;
use thiserror::Error;

/// The time limit for a request: a connection that hangs must not block the fleet.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// A read or write that the API server rejected, or that did not reach it.
#[derive(Debug, Error)]
pub enum Error {
    /// The request failed.
    #[error("failed to {what}: {}", words(source))]
    Failed {
        /// The action, such as `label node gpu-1`.
        what: String,
        /// The client's error.
        #[source]
        source: kube::Error,
    },
    /// There was no answer in time.
    #[error("failed to {what}: no answer in time")]
    NoAnswer {
        /// The action.
        what: String,
    },
}

/// Returns the API server's message without the rest of its answer.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => error.to_string(),
    }
}

/// Makes a request, with [`REQUEST_DEADLINE`] as time limit.
///
/// # Errors
/// Returns an [`Error`] that names the action `what`.
pub async fn request<T>(what: String, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_DEADLINE, request).await {
        Ok(answer) => answer.map_err(|source| Error::Failed { what, source }),
        Err(_) => Err(Error::NoAnswer { what }),
    }
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
    /// The API server returned any other error.
    Refused,
    /// The API server could not be reached.
    Unreachable,
}

impl Class {
    /// Returns the name, such as `Forbidden`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl Error {
    /// Returns the error's class.
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

    /// Returns how soon to retry: errors that only a person can fix are not retried every second.
    #[must_use]
    pub fn retry_after(&self) -> Duration {
        match self.class() {
            Class::Conflict | Class::NotFound => Duration::from_secs(1),
            Class::Unreachable | Class::Refused => Duration::from_secs(5),
            Class::Forbidden | Class::Invalid => Duration::from_secs(30),
        }
    }
}
