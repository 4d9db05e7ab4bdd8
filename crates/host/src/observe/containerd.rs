//! The host's containerds: the configuration files with which they were started.

use toml_edit::{Document, Item};

use super::processes;
use crate::root::HostRoot;

const NAME: &str = "containerd";
/// Distributions that start a containerd of their own, by the beginning of their processes' names.
const STARTED_BY: [&str; 2] = ["k3s", "rke2"];
/// The sockets of containerd as installed by packages, of k3s and RKE2, of k0s and of `MicroK8s`.
pub const SOCKETS: [&str; 4] = [
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
    "/run/k0s/containerd.sock",
    "/var/snap/microk8s/common/run/containerd.sock",
];
/// The socket of a containerd without another in its flags or its file.
const SOCKET: &str = SOCKETS[0];
/// The bound of the API type.
const MAX_PATH: usize = 255;

/// A containerd whose command line names a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Started {
    /// The socket on which it serves.
    pub socket: String,
    pub config: String,
}

/// Returns the host's containerds whose command lines name a file. Those that Docker starts for itself are not among them.
pub fn started(host: &HostRoot) -> Vec<Started> {
    let is_distribution = |name: &str| STARTED_BY.iter().any(|known| name.starts_with(known));
    processes::daemons(host, NAME, is_distribution).filter_map(|line| parse(host, &line)).collect()
}

fn parse(host: &HostRoot, command_line: &[u8]) -> Option<Started> {
    let flags = processes::flags(command_line, &["config", "c", "address", "a"]);
    let config = processes::last(&flags, &["config", "c"]).filter(|path| is_plain(path))?.to_owned();
    let socket = processes::last(&flags, &["address", "a"]).map(str::to_owned);
    let socket = socket.or_else(|| address(&host.read(&config).ok()?));
    let socket = socket.map_or_else(|| SOCKET.to_owned(), |socket| socket.replacen("/var/run/", "/run/", 1));
    Some(Started { socket, config })
}

/// Whether it is an absolute path without links to parents, of the characters that the API permits in paths.
pub(super) fn is_plain(path: &str) -> bool {
    let is_part = |part: &str| {
        let is_legal = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        !["", ".", ".."].contains(&part) && part.chars().all(is_legal)
    };
    path.len() <= MAX_PATH
        && path.strip_prefix('/').is_some_and(|parts| parts.contains('/') && parts.split('/').all(is_part))
}

fn address(text: &str) -> Option<String> {
    let document = Document::parse(text).ok()?;
    let address = document.as_table().get("grpc").and_then(Item::as_table)?.get("address")?.as_str()?;
    Some(address.to_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// What is found on a host with a process 40 of that parent, and with these files.
    fn found(parent: (u32, &str), arguments: &[&str], files: &[(&str, &str)]) -> Vec<(String, String)> {
        let root = tempfile::tempdir().unwrap();
        let status = |parent: u32| format!("PPid:\t{parent}\nUid:\t0\t0\t0\t0\n");
        let (own, of_parent) = (status(parent.0), status(1));
        let command_line: String = arguments.iter().flat_map(|argument| [argument, "\0"]).collect();
        let processes = [
            ("/proc/40/comm", "containerd\n"),
            ("/proc/40/status", &own),
            ("/proc/40/cmdline", &command_line),
            ("/proc/30/comm", parent.1),
            ("/proc/30/status", &of_parent),
        ];
        for (path, text) in processes.iter().chain(files) {
            let path = root.path().join(path.trim_start_matches('/'));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        started(&HostRoot::new(root.path())).into_iter().map(|started| (started.socket, started.config)).collect()
    }

    #[test]
    fn the_file_and_the_socket_are_those_of_the_command_line() {
        const INIT: (u32, &str) = (1, "");
        const OTHER_SOCKET: (&str, &str) = ("/srv/c.toml", "[grpc]\naddress = \"/run/other.sock\"\n");
        let k3s = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml";
        for (parent, arguments, files, expected) in [
            (INIT, &["containerd", "--config", "/srv/c.toml"][..], &[][..], Some((SOCKET, "/srv/c.toml"))),
            (INIT, &["containerd", "--log-level=warn", "-c=/srv/c.toml"], &[], Some((SOCKET, "/srv/c.toml"))),
            (INIT, &["containerd", "-config", "/srv/c.toml"], &[], Some((SOCKET, "/srv/c.toml"))),
            (
                INIT,
                &[
                    "/bin/containerd",
                    "--address",
                    "/var/run/containerd/containerd.sock",
                    "--config=/etc/cri/containerd.toml",
                ],
                &[],
                Some((SOCKET, "/etc/cri/containerd.toml")),
            ),
            (
                INIT,
                &["containerd", "-c", "/srv/c.toml", "-a", "/run/x.sock"],
                &[],
                Some(("/run/x.sock", "/srv/c.toml")),
            ),
            (INIT, &["containerd", "-c", "/srv/c.toml"], &[OTHER_SOCKET], Some(("/run/other.sock", "/srv/c.toml"))),
            (
                (30, "k3s-agent"),
                &["containerd", "-c", k3s, "-a", "/run/k3s/containerd/containerd.sock"],
                &[],
                Some(("/run/k3s/containerd/containerd.sock", k3s)),
            ),
            // Without the flag, it reads its usual file.
            (INIT, &["containerd"], &[], None),
            (INIT, &["containerd", "--config"], &[], None),
            (INIT, &["containerd", "--config", "c.toml"], &[], None),
            (INIT, &["containerd", "--config", "/srv/../c.toml"], &[], None),
            // Docker's own, and that of a node in a container.
            ((30, "dockerd"), &["containerd", "--config", "/var/run/docker/containerd/containerd.toml"], &[], None),
            ((30, "containerd-shim"), &["containerd", "--config", "/srv/c.toml"], &[], None),
        ] {
            let expected: Vec<_> =
                expected.iter().map(|(socket, config)| ((*socket).to_owned(), (*config).to_owned())).collect();
            assert_eq!(found(parent, arguments, files), expected, "{parent:?} {arguments:?}");
        }
    }
}
