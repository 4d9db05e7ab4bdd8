//! Passing requests by gRPC on from kubelet to containerd.

use std::path::Path;

use anyhow::{Context, Result};
use h2::{
    RecvStream, SendStream,
    client::{self, SendRequest},
    server::{self, SendResponse},
};
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::bytes::Bytes;
use tokio::{net::UnixStream, select};

use super::{
    cri::{Decision, decide, without_handlers},
    engine::Engine,
};

/// The byte and the length before each message.
const PREFIX: usize = 5;

/// Serves one connection of kubelet, until it or that to containerd ends.
pub async fn connection(kubelet: UnixStream, containerd: &Path, engine: Engine) -> Result<()> {
    let mut server = server::handshake(kubelet).await?;
    let containerd = UnixStream::connect(containerd).await.context("connecting to containerd")?;
    let (client, mut passing) = client::handshake(containerd).await?;
    loop {
        let request = select! {
            ended = &mut passing => return ended.context("containerd"),
            request = server.accept() => request,
        };
        let Some(request) = request else { return Ok(()) };
        let (request, respond) = request?;
        let (client, engine) = (client.clone(), engine.clone());
        tokio::spawn(async move {
            let method = request.uri().path().to_owned();
            if let Err(error) = answer(request, respond, client, &engine).await {
                eprintln!("{method}: {error:#}");
            }
        });
    }
}

/// Answers a request, or passes it on.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    client: SendRequest<Bytes>,
    engine: &Engine,
) -> Result<()> {
    let (head, body) = request.into_parts();
    let (body, _) = read(body).await?;
    let decision = match decide(head.uri.path(), body.get(PREFIX..).unwrap_or_default(), engine).await {
        Ok(decision) => decision,
        Err(error) => {
            eprintln!("{}: {error:#}", head.uri.path());
            let mut refusal = grpc();
            // Unknown, as errors of Docker are.
            refusal.headers_mut().insert("grpc-status", HeaderValue::from_static("2"));
            refusal.headers_mut().insert("grpc-message", HeaderValue::from_str(&format!("{error:#}"))?);
            respond.send_response(refusal, true)?;
            return Ok(());
        }
    };
    if let Decision::Answer(message) = decision {
        let mut stream = respond.send_response(grpc(), false)?;
        stream.send_data(framed(&message)?, false)?;
        let ok = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"))]);
        return Ok(stream.send_trailers(ok)?);
    }
    let (response, mut sending) = client.ready().await?.send_request(Request::from_parts(head, ()), false)?;
    sending.send_data(body, true)?;
    let (head, mut body) = response.await?.into_parts();
    let head = Response::from_parts(head, ());
    if body.is_end_stream() {
        respond.send_response(head, true)?;
        return Ok(());
    }
    let mut stream = respond.send_response(head, false)?;
    if let Decision::PassOnStatus = decision {
        let (status, trailers) = read(body).await?;
        stream.send_data(framed(&without_handlers(status.get(PREFIX..).unwrap_or_default())?)?, false)?;
        return end(&mut stream, trailers);
    }
    while let Some(chunk) = body.data().await.transpose()? {
        body.flow_control().release_capacity(chunk.len())?;
        stream.send_data(chunk, false)?;
    }
    end(&mut stream, body.trailers().await?)
}

fn grpc() -> Response<()> {
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response
}

fn end(stream: &mut SendStream<Bytes>, trailers: Option<HeaderMap>) -> Result<()> {
    Ok(stream.send_trailers(trailers.unwrap_or_default())?)
}

/// Reads a body up to its trailers.
async fn read(mut body: RecvStream) -> Result<(Bytes, Option<HeaderMap>)> {
    let mut bytes = Vec::new();
    while let Some(chunk) = body.data().await.transpose()? {
        body.flow_control().release_capacity(chunk.len())?;
        bytes.extend_from_slice(&chunk);
    }
    Ok((bytes.into(), body.trailers().await?))
}

fn framed(message: &[u8]) -> Result<Bytes> {
    let length = u32::try_from(message.len())?;
    Ok([&[0], &length.to_be_bytes()[..], message].concat().into())
}
