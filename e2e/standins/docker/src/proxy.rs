//! Passing requests by gRPC on from kubelet to containerd.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use h2::{
    RecvStream, SendStream,
    client::{self, SendRequest},
    server::{self, SendResponse},
};
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::{Message, bytes::Bytes};
use serde_json::Value;
use standin_node::RUNTIME_FILE;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    select,
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

/// What becomes of a request.
pub enum Decision {
    /// It is passed on.
    PassOn,
    /// It is passed on, and so is this part of the response only.
    PassOnStatus,
    /// It is answered with this message.
    Answer(Vec<u8>),
}

#[derive(Clone, PartialEq, Message)]
struct VersionResponse {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(string, tag = "2")]
    runtime_name: String,
    #[prost(string, tag = "3")]
    runtime_version: String,
    #[prost(string, tag = "4")]
    runtime_api_version: String,
}

/// The part of the request for a sandbox that names a RuntimeClass's handler.
#[derive(Clone, PartialEq, Message)]
struct Sandbox {
    #[prost(string, tag = "2")]
    runtime_handler: String,
}

/// A status without the handlers of RuntimeClasses.
#[derive(Clone, PartialEq, Message)]
struct Status {
    #[prost(bytes = "bytes", tag = "1")]
    status: Bytes,
}

/// Decides on a request.
pub async fn decide(method: &str, message: &[u8], engine: &Engine) -> Result<Decision> {
    match method {
        "/runtime.v1.RuntimeService/Version" => {
            let version = VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "docker".to_owned(),
                runtime_version: engine.version().await?,
                runtime_api_version: "v1".to_owned(),
            };
            Ok(Decision::Answer(version.encode_to_vec()))
        }
        "/runtime.v1.RuntimeService/Status" => Ok(Decision::PassOnStatus),
        "/runtime.v1.RuntimeService/RunPodSandbox" => {
            let Sandbox { runtime_handler } = Sandbox::decode(message)?;
            if !runtime_handler.is_empty() {
                bail!("the RuntimeClass's handler {runtime_handler} is not supported");
            }
            record_runtime(engine).await?;
            Ok(Decision::PassOn)
        }
        "/runtime.v1.RuntimeService/CreateContainer" => {
            record_runtime(engine).await?;
            Ok(Decision::PassOn)
        }
        _ => Ok(Decision::PassOn),
    }
}

/// Records the program that creates containers.
async fn record_runtime(engine: &Engine) -> Result<()> {
    let new = format!("{RUNTIME_FILE}.{}", std::process::id());
    std::fs::write(&new, engine.default_runtime().await?)?;
    Ok(std::fs::rename(new, RUNTIME_FILE)?)
}

/// Returns a status of containerd as cri-dockerd would answer.
pub fn without_handlers(status: &[u8]) -> Result<Vec<u8>> {
    Ok(Status::decode(status)?.encode_to_vec())
}

/// A Docker engine, by its socket.
#[derive(Clone, Debug)]
pub struct Engine(pub PathBuf);

impl Engine {
    pub async fn version(&self) -> Result<String> {
        self.get("/version").await?["Version"].as_str().map(str::to_owned).context("no version")
    }

    /// Returns the program that its default runtime is.
    pub async fn default_runtime(&self) -> Result<String> {
        let info = self.get("/info").await?;
        let name = info["DefaultRuntime"].as_str().context("no default runtime")?;
        info["Runtimes"][name]["path"].as_str().map(str::to_owned).with_context(|| format!("no runtime {name}"))
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.ask(path).await.with_context(|| format!("asking Docker for {path}"))?;
        let body = answer.split_once("\r\n\r\n").context("no body")?.1;
        serde_json::from_str(body).with_context(|| answer.clone())
    }

    async fn ask(&self, path: &str) -> std::io::Result<String> {
        let socket: &Path = &self.0;
        let (mut stream, mut answer) = (UnixStream::connect(socket).await?, String::new());
        // By this version of HTTP the body ends with the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n").as_bytes()).await?;
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}
