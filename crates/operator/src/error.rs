//! Errors of requests to the API server. Their class is a label value of a metric, and [`gpu_operator_plan::loop_memory`] determines by it how soon to
//! retry.

use std::time::Duration;

use gpu_operator_plan::loop_memory::{Class, Failure};
use thiserror::Error;

/// The time limit for a request: a connection that hangs must not block the fleet.
pub const REQUEST_DEADLINE: Duration = Duration::from_secs(30);

/// A read or write that the API server rejected, or that did not reach it.
#[derive(Debug, Error)]
pub enum Error {
    #[error("failed to {what}: {}", words(source))]
    Failed {
        /// Such as `label node gpu-1`.
        what: String,
        #[source]
        source: kube::Error,
    },
    #[error("failed to {what}: the object has changed in the meantime")]
    Outdated { what: String },
    #[error("failed to {what}: no answer in time")]
    NoAnswer { what: String },
}

/// Returns the API server's message without the rest of its answer.
fn words(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => {
            // Which PodDisruptionBudget forbids an eviction is only there.
            let causes = status.details.iter().flat_map(|details| &details.causes);
            let budgets = causes.filter(|cause| cause.reason == "DisruptionBudget").map(|cause| cause.message.as_str());
            [status.message.as_str()].into_iter().chain(budgets).collect::<Vec<_>>().join(" ")
        }
        error => error.to_string(),
    }
}

/// Makes a request, with [`REQUEST_DEADLINE`] as time limit.
pub async fn request<T>(what: String, request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(REQUEST_DEADLINE, request).await {
        Ok(answer) => answer.map_err(|source| Error::Failed { what, source }),
        Err(_) => Err(Error::NoAnswer { what }),
    }
}

impl Error {
    pub fn class(&self) -> Class {
        let source = match self {
            Self::Failed { source, .. } => source,
            Self::Outdated { .. } => return Class::Conflict,
            Self::NoAnswer { .. } => return Class::Unreachable,
        };
        match source {
            kube::Error::Api(status) if status.is_forbidden() => Class::Forbidden,
            kube::Error::Api(status) if status.is_conflict() => Class::Conflict,
            kube::Error::Api(status) if status.is_not_found() => Class::NotFound,
            kube::Error::Api(status) if status.is_invalid() => Class::Invalid,
            kube::Error::Api(status) if status.code == 429 => Class::TooManyRequests,
            kube::Error::Api(_) => Class::Refused,
            _ => Class::Unreachable,
        }
    }

    /// Returns what later passes need to know of the error.
    pub fn failure(&self) -> Failure {
        Failure { class: self.class(), message: self.to_string() }
    }
}
