//! Requests by gRPC to servers on the node, over their unix sockets: one message out, one message back.

use std::{io, path::Path, time::Duration};

use h2::RecvStream;
use http::{HeaderMap, Request};
use prost::bytes::Bytes;
use tokio::{net::UnixStream, task::JoinSet, time::timeout};

/// The byte and the length before each message.
const PREFIX: usize = 5;

#[derive(Debug, thiserror::Error)]
pub enum GrpcError {
    #[error("the connection broke")]
    Http(#[from] h2::Error),
    #[error("cannot build the request")]
    Request(#[from] http::Error),
    #[error("the server answered with gRPC status {0}")]
    Status(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("the response is larger than {0} bytes")]
    TooLarge(usize),
    #[error("the response is not one gRPC message")]
    Malformed,
}

impl GrpcError {
    /// Returns whether the server does not implement the method.
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Status(code) if code == "12")
    }
}

/// Connects to a unix socket, which can block if the queue of the socket is full.
pub async fn connect(socket: &Path, deadline: Duration) -> io::Result<UnixStream> {
    timeout(deadline, UnixStream::connect(socket)).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// Sends an encoded message to a method such as `/v1.PodResourcesLister/List`, and returns the encoded message of the response.
pub async fn call(
    stream: UnixStream,
    method: &str,
    message: &[u8],
    limit: usize,
    deadline: Duration,
) -> Result<Vec<u8>, GrpcError> {
    timeout(deadline, exchange(stream, method, message, limit)).await.unwrap_or(Err(GrpcError::Late(deadline)))
}

async fn exchange(stream: UnixStream, method: &str, request: &[u8], limit: usize) -> Result<Vec<u8>, GrpcError> {
    let length = u32::try_from(request.len()).map_err(|_| GrpcError::TooLarge(request.len()))?;
    // Not compressed.
    let framed = [&[0], &length.to_be_bytes()[..], request].concat();
    let (client, connection) = h2::client::Builder::new().handshake::<_, Bytes>(stream).await?;
    // The task ends with this set, even if the request is cancelled.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = Request::post(format!("http://localhost{method}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(())?;
    let (response, mut body) = client.ready().await?.send_request(request, false)?;
    body.send_data(framed.into(), true)?;
    let (head, body) = response.await?.into_parts();
    // A server without a message for the client sends the status with the headers.
    check(&head.headers)?;
    if !head.status.is_success() {
        return Err(GrpcError::Malformed);
    }
    message(body, limit).await
}

/// Reads the message of a response up to the trailers.
async fn message(mut body: RecvStream, limit: usize) -> Result<Vec<u8>, GrpcError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await.transpose()? {
        if bytes.len() + chunk.len() > limit + PREFIX {
            return Err(GrpcError::TooLarge(limit));
        }
        body.flow_control().release_capacity(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    // A response without trailers is not complete.
    check(&body.trailers().await?.ok_or(GrpcError::Malformed)?)?;
    let Some((&[0, a, b, c, d], message)) = bytes.split_first_chunk() else { return Err(GrpcError::Malformed) };
    let length = u32::from_be_bytes([a, b, c, d]);
    if usize::try_from(length) == Ok(message.len()) { Ok(message.to_vec()) } else { Err(GrpcError::Malformed) }
}

/// Fails if headers or trailers contain a status other than success.
fn check(headers: &HeaderMap) -> Result<(), GrpcError> {
    match headers.get("grpc-status") {
        Some(status) if status.as_bytes() != b"0" => {
            Err(GrpcError::Status(String::from_utf8_lossy(status.as_bytes()).into_owned()))
        }
        Some(_) | None => Ok(()),
    }
}
