//! The configuration that container runtimes have loaded, which may differ from their files: containerd reports it in the `Status` of the
//! Container Runtime Interface, and Docker by its own API. CRI-O reports none, so its files are read.

use std::{collections::HashMap, io, time::Duration};

use gpu_operator_crd::report::LoadedRuntime;
use prost::Message;
use serde::Deserialize;

use super::{
    containerd,
    dockerd::{self, Flags},
    host_runtimes::{self, CRIO_SOCKET},
};
use crate::{
    grpc::{self, GrpcError},
    root::{HostRoot, present},
};

pub const DOCKER_SOCKET: &str = "/var/run/docker.sock";
/// From which CRI-O reads CDI specifications if its files do not set it.
const CRIO_DIRS: [&str; 2] = ["/etc/cdi", "/var/run/cdi"];
const METHOD: &str = "/runtime.v1.RuntimeService/Status";
/// The time limit of a request. containerd answers from memory.
const DEADLINE: Duration = Duration::from_secs(2);
/// The largest response, in bytes. The configuration takes some ten thousand.
const MAX_RESPONSE: usize = 1024 * 1024;
/// The bounds of the API type.
const MAX_DIRS: usize = 8;
const MAX_PATH: usize = 256;
const MAX_NAME: usize = 64;

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
    #[error("cannot request Docker's information")]
    Docker(#[source] Box<dyn std::error::Error + Send + Sync>),
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
    Ok(LoadedRuntime {
        socket: socket.to_owned(),
        config: None,
        default_runtime: config.containerd.default_runtime_name.as_deref().map(bounded),
        cdi: config.enable_cdi,
        cdi_spec_dirs: few(config.cdi_spec_dirs.unwrap_or_default()),
    })
}

/// Asks Docker. Returns `None` if it does not run: a request would start it.
pub async fn ask_docker(host: &HostRoot) -> Result<Option<LoadedRuntime>, LoadedRuntimeError> {
    let Some(flags) = Flags::of_host(host) else { return Ok(None) };
    let Some(path) = present(host.resolve(DOCKER_SOCKET)).map_err(LoadedRuntimeError::Find)? else { return Ok(None) };
    let info = dockerd::info(&path, DEADLINE).await.map_err(LoadedRuntimeError::Docker)?;
    Ok(Some(LoadedRuntime {
        socket: DOCKER_SOCKET.to_owned(),
        config: flags.config_file.filter(|file| containerd::is_plain(file)),
        default_runtime: Some(bounded(&info.default_runtime)),
        ..LoadedRuntime::default()
    }))
}

/// Returns the configuration in CRI-O's files, if it is there.
pub fn of_crio(host: &HostRoot) -> Option<LoadedRuntime> {
    host.metadata(CRIO_SOCKET).ok()?;
    let configured = host_runtimes::crio(host);
    let dirs = configured.cdi_spec_dirs.unwrap_or_else(|| CRIO_DIRS.map(str::to_owned).into());
    Some(LoadedRuntime {
        socket: CRIO_SOCKET.to_owned(),
        config: None,
        default_runtime: configured.default.as_deref().map(bounded),
        cdi: Some(!dirs.is_empty()),
        cdi_spec_dirs: few(dirs),
    })
}

fn bounded(name: &str) -> String {
    name.chars().take(MAX_NAME).collect()
}

fn few(dirs: Vec<String>) -> Vec<String> {
    dirs.into_iter().filter(|dir| dir.len() <= MAX_PATH).take(MAX_DIRS).collect()
}

/// The part of containerd's configuration that is used here. Releases that cannot enable CDI have no such fields.
#[derive(Debug, Default, Deserialize)]
struct Config {
    #[serde(rename = "enableCDI")]
    enable_cdi: Option<bool>,
    #[serde(rename = "cdiSpecDirs")]
    cdi_spec_dirs: Option<Vec<String>>,
    #[serde(default)]
    containerd: Containerd,
}

#[derive(Debug, Default, Deserialize)]
struct Containerd {
    #[serde(rename = "defaultRuntimeName")]
    default_runtime_name: Option<String>,
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

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
    };

    use super::*;

    fn write(root: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    /// The process 40 of the host.
    fn daemon<'t>(name: &'t str, command_line: &'t str) -> [(&'static str, &'t str); 3] {
        let status = "PPid:\t1\nUid:\t0\t0\t0\t0\n";
        [("/proc/40/comm", name), ("/proc/40/status", status), ("/proc/40/cmdline", command_line)]
    }

    #[test]
    fn crios_files_show_the_folders_of_cdi() {
        const MAIN: &str = "/etc/crio/crio.conf";
        const LAST: &str = "/etc/crio/crio.conf.d/99-site.conf";
        const EMPTY: &str = "[crio.runtime]\ncdi_spec_dirs = []\n";
        const OTHER: &str =
            "[crio.runtime]\ndefault_runtime = \"crun\"\ncdi_spec_dirs = [\"/opt/cdi\", \"/etc/cdi\"]\n";
        for (line, files, dirs, default) in [
            ("crio\0", &[][..], &CRIO_DIRS[..], None),
            ("crio\0", &[(MAIN, "[crio.runtime]\nselinux = true\n")], &CRIO_DIRS, None),
            ("crio\0", &[(MAIN, EMPTY)], &[], None),
            ("crio\0", &[(MAIN, OTHER)], &["/opt/cdi", "/etc/cdi"], Some("crun")),
            ("crio\0", &[(MAIN, OTHER), (LAST, EMPTY)], &[], Some("crun")),
            (
                "crio\0--config\0/srv/crio.conf\0",
                &[(MAIN, EMPTY), ("/srv/crio.conf", OTHER)],
                &["/opt/cdi", "/etc/cdi"],
                Some("crun"),
            ),
            (
                "crio\0-d=/srv/crio.d\0",
                &[(LAST, EMPTY), ("/srv/crio.d/1.conf", OTHER)],
                &["/opt/cdi", "/etc/cdi"],
                Some("crun"),
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            let host = HostRoot::new(root.path());
            write(root.path(), files);
            assert_eq!(of_crio(&host), None, "it does not run");
            write(root.path(), &daemon("crio", line));
            write(root.path(), &[(CRIO_SOCKET, "")]);
            let found = of_crio(&host).unwrap();
            assert_eq!(
                (found.cdi, found.cdi_spec_dirs),
                (Some(!dirs.is_empty()), few(dirs.iter().map(|dir| (*dir).to_owned()).collect())),
                "{line:?}"
            );
            assert_eq!(found.default_runtime.as_deref(), default, "{line:?}");
        }
    }

    #[tokio::test]
    async fn docker_is_asked_while_it_runs() {
        let root = tempfile::tempdir().unwrap();
        let host = HostRoot::new(root.path());
        write(root.path(), &[("/etc/docker/daemon.json", "{}"), ("/var/run/none", "")]);
        let listener = UnixListener::bind(root.path().join("var/run/docker.sock")).unwrap();
        assert!(ask_docker(&host).await.unwrap().is_none(), "systemd serves the socket");
        write(root.path(), &daemon("dockerd", "dockerd\0--config-file=/srv/docker.json\0"));
        let server = tokio::spawn(async move {
            let body = r#"{"DefaultRuntime": "runc", "Runtimes": {"nvidia": {"path": "/usr/bin/x"}, "runc": {}}}"#;
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = stream.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"GET /info HTTP/1.1\r\n"));
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            stream.write_all(response.as_bytes()).await.unwrap();
        });
        let found = ask_docker(&host).await.unwrap().unwrap();
        server.await.unwrap();
        assert_eq!(
            (found.default_runtime.as_deref(), found.config.as_deref()),
            (Some("runc"), Some("/srv/docker.json"))
        );
        // It is being restarted.
        assert!(ask_docker(&host).await.is_err());
    }
}
