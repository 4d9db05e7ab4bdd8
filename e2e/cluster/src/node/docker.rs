//! A node's Docker, as packaged by Debian, and the stand-in for cri-dockerd between it and kubelet.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use harness::{
    cargo::Build,
    debian,
    files::{append, write},
    node_id::NodeId,
    paths::Paths,
    process::{reloadable, spawn_detached},
};
use standin_node::RUNTIME_FILE;

use super::containerd::{self, Containerd};

/// The path of cri-dockerd's socket in its node.
pub const CRI_SOCKET: &str = "/run/cri-dockerd.sock";
/// The path of Docker's socket in its node.
pub const SOCKET: &str = "/run/docker.sock";
/// The path of its configuration in its node, relative to the root.
const CONFIG: &str = "etc/docker/daemon.json";
/// The path in its node, relative to the root, of the program by which its containers are created.
const OCI_RUNTIME: &str = "usr/local/sbin/docker-oci-runtime";
/// The stand-in for cri-dockerd.
const CRI_DOCKERD: &str = "cri-dockerd";

/// The configuration, as a person would write it. Docker has no network here, and changes none of the machine.
const DAEMON_JSON: &str = r#"{
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "log-driver": "json-file",
    "log-opts": { "max-size": "100m" },
    "insecure-registries": [ "localhost:5999" ],
    "bridge": "none", "iptables": false, "ip6tables": false,
    "ip-forward": false, "ip-masq": false
}
"#;

/// Writes its configuration to the node's disk, and returns the program that creates its containers: the default runtime of Docker, which the
/// stand-in for cri-dockerd has recorded. Containers are deleted by runc, because that runtime may have been removed.
pub fn configure(paths: &Paths, node: NodeId, disk: &Path) -> Result<PathBuf> {
    debian::docker().context("Docker")?;
    let built = Build::Debug.file(paths, CRI_DOCKERD);
    // The present build, also after a reboot.
    fs::copy(&built, paths.node(node).join(CRI_DOCKERD)).with_context(|| format!("copying {}", built.display()))?;
    let config = disk.join(CONFIG);
    if !config.exists() {
        write(&config, DAEMON_JSON)?;
    }
    let script = format!(
        "#!/bin/sh\nruntime=runc\nfor argument; do\n    [ \"$argument\" != create ] || runtime=$(cat {RUNTIME_FILE})\ndone\nexec \"$runtime\" \"$@\"\n"
    );
    let program = disk.join(OCI_RUNTIME);
    write(&program, &script)?;
    fs::set_permissions(program, Permissions::from_mode(0o755))?;
    Ok(Path::new("/").join(OCI_RUNTIME))
}

/// Starts Docker in the node whose first process this is, and returns its process id.
pub fn start(paths: &Paths, node: NodeId) -> Result<u32> {
    let mut command = reloadable(&debian::docker()?.daemon);
    command.arg(format!("--containerd={}", containerd::SOCKET)).arg(format!("--host=unix://{SOCKET}"));
    run(command, "dockerd", paths, node)
}

/// Starts the stand-in for cri-dockerd, likewise.
pub fn start_cri(paths: &Paths, node: NodeId) -> Result<u32> {
    let mut command = Command::new(paths.node(node).join(CRI_DOCKERD));
    command.args([CRI_SOCKET, containerd::SOCKET, SOCKET]);
    run(command, CRI_DOCKERD, paths, node)
}

fn run(mut command: Command, name: &str, paths: &Paths, node: NodeId) -> Result<u32> {
    let log = append(&paths.log(&format!("{name}.{}", node.name())))?;
    spawn_detached(command.env("PATH", Containerd::One.search_path(paths)), log)
}
