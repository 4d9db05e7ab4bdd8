//! The requests that are not passed on to containerd as they are.

use anyhow::{Result, bail};
use prost::{Message, bytes::Bytes};

use standin_node::RUNTIME_FILE;

use super::engine::Engine;

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
