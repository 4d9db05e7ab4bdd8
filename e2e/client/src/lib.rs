//! The running cluster, as tests and benchmarks use it.

pub mod audit;
pub mod handle;
pub mod operator_process;
pub mod permissions;
pub mod probe_process;

use anyhow::Result;

/// Returns an error unless a request succeeded, or its object does not exist.
pub fn ignore_not_found<T>(outcome: kube::Result<T>) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        outcome => Ok(outcome.map(drop)?),
    }
}
