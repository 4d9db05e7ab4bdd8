//! The configuration that container runtimes have loaded, which may differ from their files: containerd reports it in the `Status` of the
//! Container Runtime Interface. CRI-O and cri-dockerd report no configuration there.

use std::{collections::HashMap, io, time::Duration};

use gpu_operator_crd::report::LoadedRuntime;
use prost::Message;
use serde::Deserialize;

use crate::{
    grpc::{self, GrpcError},
    root::{HostRoot, present},
};

/// The sockets of containerd as installed by packages, of k3s and RKE2, of k0s and of `MicroK8s`.
pub const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];
const METHOD: &str = "/runtime.v1.RuntimeService/Status";
/// The time limit of a request. containerd answers from memory.
const DEADLINE: Duration = Duration::from_secs(2);
/// The largest response, in bytes. The configuration takes some ten thousand.
const MAX_RESPONSE: usize = 1024 * 1024;
/// The bounds of the API type.
const MAX_DIRS: usize = 8;
const MAX_PATH: usize = 256;

#[derive(Debug, thiserror::Error)]
pub enum LoadedRuntimeError {
    #[error("cannot find the socket")]
    Find(#[source] io::Error),
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("cannot request the status")]
    Request(#[from] GrpcError),
    #[error("cannot decode the status")]
    Decode(#[from] prost::DecodeError),
    #[error("cannot parse the configuration in the status")]
    Parse(#[from] serde_json::Error),
}

/// Asks the containerd of a socket. Returns `None` if there is none, or if it serves something else than the CRI.
pub async fn ask(host: &HostRoot, socket: &str) -> Result<Option<LoadedRuntime>, LoadedRuntimeError> {
    let Some(path) = present(host.resolve(socket)).map_err(LoadedRuntimeError::Find)? else { return Ok(None) };
    let stream = grpc::connect(&path, DEADLINE).await.map_err(LoadedRuntimeError::Connect)?;
    let request = StatusRequest { verbose: true }.encode_to_vec();
    match grpc::call(stream, METHOD, &request, MAX_RESPONSE, DEADLINE).await {
        Ok(response) => decode(socket, &response).map(Some),
        Err(error) if error.is_unimplemented() => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the configuration in an encoded `runtime.v1.StatusResponse`.
pub fn decode(socket: &str, response: &[u8]) -> Result<LoadedRuntime, LoadedRuntimeError> {
    let info = StatusResponse::decode(response)?.info;
    let config: Config = info.get("config").map_or_else(|| Ok(Config::default()), |text| serde_json::from_str(text))?;
    let dirs = config.cdi_spec_dirs.unwrap_or_default().into_iter();
    Ok(LoadedRuntime {
        socket: socket.to_owned(),
        cdi: config.enable_cdi,
        cdi_spec_dirs: dirs.filter(|dir| dir.len() <= MAX_PATH).take(MAX_DIRS).collect(),
    })
}

/// The part of containerd's configuration that is used here. Releases that cannot enable CDI have no such fields.
#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(rename = "enableCDI")]
    enable_cdi: Option<bool>,
    #[serde(rename = "cdiSpecDirs")]
    cdi_spec_dirs: Option<Vec<String>>,
}

// The parts of Kubernetes' k8s.io/cri-api/pkg/apis/runtime/v1 that are used here. Other fields are skipped.

#[derive(Clone, PartialEq, Message)]
struct StatusRequest {
    #[prost(bool, tag = "1")]
    verbose: bool,
}

#[derive(Clone, PartialEq, Message)]
struct StatusResponse {
    #[prost(map = "string, string", tag = "2")]
    info: HashMap<String, String>,
}
