//! Checks whether a container runtime serves the CRI: with an invalid configuration, containerd runs without that
//! plugin.

use std::time::Duration;

use gpu_host::grpc::{self, GrpcError};
use tokio::net::UnixStream;

/// How long a response may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The largest response, in bytes. A version takes less than a hundred.
const MAX_RESPONSE: usize = 64 * 1024;

/// Why it does not answer.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    #[error("it does not serve the CRI: its configuration may be invalid")]
    Unknown,
    #[error(transparent)]
    Request(GrpcError),
}

/// Requests the runtime's version, the simplest of all requests.
pub async fn check(stream: UnixStream) -> Result<(), CriError> {
    match grpc::call(stream, "/runtime.v1.RuntimeService/Version", MAX_RESPONSE, PATIENCE).await {
        Ok(version) if !version.is_empty() => Ok(()),
        Ok(_) => Err(CriError::Unknown),
        Err(error) if error.is_unimplemented() => Err(CriError::Unknown),
        Err(error) => Err(CriError::Request(error)),
    }
}
