//! Checks whether a container runtime serves the CRI: with an invalid configuration, containerd runs without that
//! plugin.

use std::{io, time::Duration};

use http::Request;
use tokio::{net::UnixStream, time::timeout};

/// How long a response may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why it does not answer.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The connection broke.
    #[error("the connection broke")]
    Http(#[from] h2::Error),
    /// The request cannot be built.
    #[error("cannot build the request")]
    Request(#[from] http::Error),
    /// It does not implement the request.
    #[error("it does not serve the CRI: its configuration may be invalid")]
    Unknown,
    /// It takes too long.
    #[error("it did not answer within {PATIENCE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
    /// The response cannot be read.
    #[error("cannot read the response")]
    Io(#[from] io::Error),
}

/// Requests the runtime's version, the simplest of all requests.
///
/// # Errors
/// Returns an error without a response, or if the response has no version.
pub async fn check(stream: UnixStream) -> Result<(), CriError> {
    timeout(PATIENCE, version(stream)).await?
}

async fn version(stream: UnixStream) -> Result<(), CriError> {
    let (client, connection) = h2::client::Builder::new().handshake::<_, &'static [u8]>(stream).await?;
    let driver = tokio::spawn(connection);
    let answer = call(client).await;
    driver.abort();
    answer
}

async fn call(client: h2::client::SendRequest<&'static [u8]>) -> Result<(), CriError> {
    let request = Request::post("http://localhost/runtime.v1.RuntimeService/Version")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let mut client = client.ready().await?;
    let (response, mut body) = client.send_request(request, false)?;
    // An empty gRPC message: not compressed, of zero bytes.
    body.send_data(&[0, 0, 0, 0, 0], true)?;
    let mut body = response.await?.into_body();
    // An unimplemented request is answered with headers only.
    let version = body.data().await.transpose()?;
    if version.is_some_and(|version| !version.is_empty()) { Ok(()) } else { Err(CriError::Unknown) }
}
