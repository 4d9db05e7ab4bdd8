//! Whether a runtime answers for containers: containerd goes on without that part of it if its configuration is wrong.

use std::{io, time::Duration};

use http::Request;
use tokio::{net::UnixStream, time::timeout};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why it does not answer.
#[derive(Debug, thiserror::Error)]
pub enum CriError {
    /// The connection.
    #[error("the connection broke")]
    Http(#[from] h2::Error),
    /// The request cannot be made.
    #[error("cannot ask")]
    Request(#[from] http::Error),
    /// It says that it does not know the question.
    #[error("it has no part for Kubernetes: its configuration may be wrong")]
    Unknown,
    /// It takes too long.
    #[error("it takes longer than {PATIENCE:?}")]
    Late(#[from] tokio::time::error::Elapsed),
    /// Reading.
    #[error("it broke off")]
    Io(#[from] io::Error),
}

/// Asks for the version of the runtime, which is the least that can be asked of it.
///
/// # Errors
/// Where no answer comes, or one without a version.
pub async fn ask(stream: UnixStream) -> Result<(), CriError> {
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
    // An empty message: not compressed, of no bytes.
    body.send_data(&[0, 0, 0, 0, 0], true)?;
    let mut body = response.await?.into_body();
    // Who does not know the question answers with headers alone.
    let version = body.data().await.transpose()?;
    if version.is_some_and(|version| !version.is_empty()) { Ok(()) } else { Err(CriError::Unknown) }
}
