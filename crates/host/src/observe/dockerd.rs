//! Docker's daemon: the runtimes on its command line, which its configuration file does not show, and its own answer.

use std::{collections::BTreeMap, error::Error, io, path::Path, time::Duration};

use http_body_util::{BodyExt, Empty, Limited};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::Deserialize;
use tokio::{net::UnixStream, task::JoinSet, time::timeout};

use super::processes;
use crate::root::HostRoot;

const NAME: &str = "dockerd";
/// Without all of these a host has no Docker, and its processes are not listed.
const OF_DOCKER: [&str; 3] = ["/etc/docker", "/run/docker.sock", "/usr/bin/dockerd"];
/// The most runtimes that are read from one.
const MAX_RUNTIMES: usize = 64;
/// The largest response, in bytes. Docker's information takes some kilobytes.
const MAX_RESPONSE: usize = 1 << 20;

/// The flags of `dockerd` that configure runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Flags {
    /// Name and program of each `--add-runtime`.
    pub runtimes: Vec<(String, String)>,
    /// Of `--default-runtime`.
    pub default: Option<String>,
    /// Of `--config-file`.
    pub config_file: Option<String>,
}

impl Flags {
    /// Parses a command line as in `/proc/PID/cmdline`.
    pub fn parse(command_line: &[u8]) -> Self {
        let mut flags = Self::default();
        for (flag, value) in processes::flags(command_line, &["add-runtime", "default-runtime", "config-file"]) {
            match flag {
                "default-runtime" => flags.default = Some(value),
                "config-file" => flags.config_file = Some(value),
                _ => flags.runtimes.extend(runtime(&value)),
            }
        }
        flags.runtimes.truncate(MAX_RUNTIMES);
        flags
    }

    /// Returns the flags of the host's daemon, if it runs.
    pub fn of_host(host: &HostRoot) -> Option<Self> {
        if !OF_DOCKER.iter().any(|path| host.metadata(path).is_ok()) {
            return None;
        }
        processes::daemons(host, NAME, |_| false).next().map(|line| Self::parse(&line))
    }
}

/// Docker ignores the case of a runtime's name.
fn runtime(value: &str) -> Option<(String, String)> {
    let (name, program) = value.split_once('=')?;
    Some((name.trim().to_lowercase(), program.trim().to_owned()))
}

/// What Docker has loaded.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Info {
    pub default_runtime: String,
    #[serde(default)]
    pub runtimes: BTreeMap<String, Program>,
    #[serde(default)]
    pub server_version: String,
}

/// The program of a runtime.
#[derive(Clone, Debug, Deserialize)]
pub struct Program {
    #[serde(default)]
    pub path: String,
}

/// Asks the Docker of a socket. The daemon of a socket that systemd serves is started by that: ask only one that runs.
pub async fn info(socket: &Path, deadline: Duration) -> Result<Info, Box<dyn Error + Send + Sync>> {
    let answer = timeout(deadline, ask(socket)).await;
    let answer = answer.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
    Ok(serde_json::from_slice(&answer)?)
}

async fn ask(socket: &Path) -> Result<Bytes, Box<dyn Error + Send + Sync>> {
    let stream = UnixStream::connect(socket).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    // The task ends with this set, even if the request is cancelled.
    let mut tasks = JoinSet::new();
    tasks.spawn(connection);
    let request = Request::get("/info").header("host", "docker").body(Empty::<Bytes>::new())?;
    let response = sender.send_request(request).await?;
    if !response.status().is_success() {
        return Err(format!("status {}", response.status()).into());
    }
    Ok(Limited::new(response.into_body(), MAX_RESPONSE).collect().await?.to_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn line(arguments: &[&str]) -> Vec<u8> {
        arguments.iter().flat_map(|argument| argument.bytes().chain([0])).collect()
    }

    fn flags(runtimes: &[(&str, &str)], default: Option<&str>) -> Flags {
        let runtimes = runtimes.iter().map(|(name, program)| ((*name).to_owned(), (*program).to_owned())).collect();
        Flags { runtimes, default: default.map(str::to_owned), config_file: None }
    }

    #[test]
    fn a_value_follows_its_flag_in_both_forms() {
        const N: &str = "/usr/bin/nvidia-container-runtime";
        for (arguments, wanted) in [
            (
                &["/usr/bin/dockerd", "--host=fd://", "--add-runtime=nvidia=/usr/bin/nvidia-container-runtime"][..],
                flags(&[("nvidia", N)], None),
            ),
            (&["dockerd", "-H", "fd://", "--default-runtime=runc", "--log-driver=journald"], flags(&[], Some("runc"))),
            (
                &["dockerd", "--add-runtime", "Kata= /kata", "--default-runtime", "kata", "--add-runtime", "x=/a=b"],
                flags(&[("kata", "/kata"), ("x", "/a=b")], Some("kata")),
            ),
            (&["--default-runtime=program", "-D"], flags(&[], None)),
            (&["dockerd", "--add-runtimes=a=/b", "--default-runtime"], flags(&[], None)),
            (&["dockerd", "--add-runtime=no-program", "--", "--default-runtime=a"], flags(&[], None)),
            (&[], flags(&[], None)),
        ] {
            assert_eq!(Flags::parse(&line(arguments)), wanted, "{arguments:?}");
        }
        let file = Flags::parse(&line(&["dockerd", "--config-file", "/srv/docker.json"])).config_file;
        assert_eq!(file.as_deref(), Some("/srv/docker.json"));
    }

    #[test]
    fn only_the_hosts_daemon_is_believed() {
        for (path, name, parent, user, is_found) in [
            ("etc/docker/daemon.json", "dockerd", 1, 0, true),
            ("run/docker.sock", "dockerd", 1, 0, true),
            // In a container, of a user, another program.
            ("etc/docker/daemon.json", "dockerd", 812, 0, false),
            ("etc/docker/daemon.json", "dockerd", 1, 1000, false),
            ("etc/docker/daemon.json", "docker", 1, 0, false),
            // No Docker on the host.
            ("etc/hosts", "dockerd", 1, 0, false),
        ] {
            let root = tempfile::tempdir().unwrap();
            let status = format!("Name:\t{name}\nPid:\t33\nPPid:\t{parent}\nUid:\t{user}\t0\t0\t0\n");
            let command_line = String::from_utf8(line(&["dockerd", "--default-runtime=nvidia"])).unwrap();
            for (path, text) in [
                (path, ""),
                ("proc/version", ""),
                ("proc/12/comm", "kubelet\n"),
                ("proc/33/comm", &format!("{name}\n")),
                ("proc/33/status", &status),
                ("proc/33/cmdline", &command_line),
            ] {
                let path = root.path().join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            let found = Flags::of_host(&HostRoot::new(root.path()));
            assert_eq!(found, is_found.then(|| flags(&[], Some("nvidia"))), "{path} {name} {parent} {user}");
        }
    }
}
