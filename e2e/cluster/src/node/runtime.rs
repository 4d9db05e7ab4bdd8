//! The container runtime of a node: containerd, or Docker beside it.

use std::{
    fs::{self, Permissions},
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use harness::{
    cargo::Build,
    debian,
    files::{append, write},
    images::PAUSE_IMAGE,
    node_id::NodeId,
    paths::Paths,
    process::{reloadable, spawn_detached},
};
use standin_node::RUNTIME_FILE;

use crate::network;

/// The container runtime of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// containerd 2, which supports CDI devices by default.
    Containerd2,
    /// containerd 1.7, which supports them only if configured; here it is not.
    Containerd1,
    /// Docker, behind a stand-in for cri-dockerd.
    Docker,
}

/// A program of the container runtime. The node's init system starts it again whenever it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    Containerd(Containerd),
    Docker,
    /// The stand-in for cri-dockerd.
    CriDockerd,
}

impl Runtime {
    /// Returns the runtime of a node, in clusters for people as well as for tests. Small clusters have no older ones, which take time to build.
    pub fn of(node: NodeId) -> Self {
        match node.number() {
            5 => Self::Containerd1,
            6 => Self::Docker,
            _ => Self::Containerd2,
        }
    }

    /// Returns its programs, in the order in which they are started.
    pub fn services(self) -> &'static [Service] {
        const OLDER: Service = Service::Containerd(Containerd::One);
        match self {
            Self::Containerd2 => &[Service::Containerd(Containerd::Two)],
            Self::Containerd1 => &[OLDER],
            Self::Docker => &[OLDER, Service::Docker, Service::CriDockerd],
        }
    }

    /// Returns the path of the socket in its node at which it serves the CRI.
    pub fn socket(self) -> &'static str {
        match self {
            Self::Containerd2 | Self::Containerd1 => SOCKET,
            Self::Docker => CRI_SOCKET,
        }
    }

    fn containerd(self) -> Containerd {
        match self {
            Self::Containerd2 => Containerd::Two,
            Self::Containerd1 | Self::Docker => Containerd::One,
        }
    }

    /// Returns the `PATH` of a node that runs it.
    pub fn search_path(self, paths: &Paths) -> String {
        self.containerd().search_path(paths)
    }

    /// Writes its configuration to the node's disk.
    pub fn configure(self, paths: &Paths, node: NodeId) -> Result<()> {
        let disk = paths.node(node).join("upper");
        let creates_containers = match self {
            Self::Containerd2 | Self::Containerd1 => paths.tool("runc"),
            Self::Docker => configure_docker(paths, node, &disk)?,
        };
        self.containerd().configure(&disk, node, &creates_containers)
    }
}

impl Service {
    /// Starts it in the node whose first process this is, and returns its process id.
    pub fn start(self, paths: &Paths, node: NodeId) -> Result<u32> {
        match self {
            Self::Containerd(version) => version.start(paths, node),
            Self::Docker => start_docker(paths, node),
            Self::CriDockerd => start_cri(paths, node),
        }
    }
}

const PROGRAM: &str = "containerd";
/// The path of containerd's socket in its node.
const SOCKET: &str = "/run/containerd/containerd.sock";
/// The path of containerd's configuration in its node, relative to the root. NVIDIA's installer expects it there.
const CONFIG: &str = "etc/containerd/config.toml";
/// The folder of the pod network's configuration in its node, relative to the root.
const NETWORKS: &str = "etc/gpu-operator-e2e/cni";
/// The file in its node with the process id of each start, one per line.
pub const STARTS: &str = "/run/containerd.starts";

/// A version of containerd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containerd {
    /// containerd 2.
    Two,
    /// containerd 1.7.
    One,
}

impl Containerd {
    /// Returns the folder of its programs.
    fn programs(self, paths: &Paths) -> PathBuf {
        match self {
            Self::Two => paths.bin(),
            Self::One => paths.containerd_1(),
        }
    }

    /// Returns the `PATH` of a node that runs it.
    pub fn search_path(self, paths: &Paths) -> String {
        let (own, all) = (self.programs(paths), paths.bin());
        format!("{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", own.display(), all.display())
    }

    fn config(self, runc: &Path) -> String {
        let runc = runc.display();
        // Without restrict_oom_score_adj no container starts on a machine that cannot lower its OOM score, such as a
        // container.
        match self {
            Self::Two => format!(
                r#"version = 3

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"

  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/{NETWORKS}"

  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
"#
            ),
            Self::One => format!(
                r#"version = 2

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  restrict_oom_score_adj = true

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "/{NETWORKS}"

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        BinaryName = "{runc}"
        SystemdCgroup = false
"#
            ),
        }
    }

    /// Writes its configuration to the node's disk. `runc` is the program that creates containers.
    pub fn configure(self, disk: &Path, node: NodeId, runc: &Path) -> Result<()> {
        if disk.join(CONFIG).exists() {
            // After a reboot the configuration keeps what was installed into it, as on a real machine.
            return Ok(());
        }
        // The gateway is the node, for services only: pods need no other connection, and the machine gets no route into their network.
        let network = serde_json::json!({
            "cniVersion": "1.0.0",
            "name": "gpu-operator-e2e",
            "plugins": [{
                "type": "bridge",
                "bridge": "pods",
                "isGateway": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{"subnet": node.pods()}]],
                    "routes": [{"dst": network::SERVICES}],
                },
            }],
        });
        write(&disk.join(NETWORKS).join("10-bridge.conflist"), &network.to_string())?;
        write(&disk.join(CONFIG), &self.config(runc))
    }

    /// Starts it in the node whose first process this is, and returns its process id.
    pub fn start(self, paths: &Paths, node: NodeId) -> Result<u32> {
        let mut command = reloadable(&self.programs(paths).join(PROGRAM));
        let id = spawn_detached(command.env("PATH", self.search_path(paths)), append(&paths.log(&log(node)))?)?;
        writeln!(append(Path::new(STARTS))?, "{id}")?;
        Ok(id)
    }
}

/// Returns the name of its log for a node.
pub fn log(node: NodeId) -> String {
    format!("{PROGRAM}.{}", node.name())
}

/// The path of cri-dockerd's socket in its node.
const CRI_SOCKET: &str = "/run/cri-dockerd.sock";
/// The path of Docker's socket in its node.
const DOCKER_SOCKET: &str = "/run/docker.sock";
/// The path of Docker's configuration in its node, relative to the root.
const DOCKER_CONFIG: &str = "etc/docker/daemon.json";
/// The path in its node of the file with additional flags of Docker, as `DOCKER_OPTS` in Debian's `/etc/default/docker`, one per line.
pub const DOCKER_FLAGS: &str = "/etc/gpu-operator-e2e/docker-flags";
/// The path in its node, relative to the root, of the program by which its containers are created.
const OCI_RUNTIME: &str = "usr/local/sbin/docker-oci-runtime";
/// The stand-in for cri-dockerd.
const CRI_DOCKERD: &str = "cri-dockerd";

/// Docker's configuration, as a person would write it. Docker has no network here, and changes none of the machine.
const DAEMON_JSON: &str = r#"{
    "exec-opts": ["native.cgroupdriver=cgroupfs"],
    "log-driver": "json-file",
    "log-opts": { "max-size": "100m" },
    "insecure-registries": [ "localhost:5999" ],
    "bridge": "none", "iptables": false, "ip6tables": false,
    "ip-forward": false, "ip-masq": false
}
"#;

/// Writes Docker's configuration to the node's disk, and returns the program that creates its containers: the default runtime of Docker, which the
/// stand-in for cri-dockerd has recorded. Containers are deleted by runc, because that runtime may have been removed.
fn configure_docker(paths: &Paths, node: NodeId, disk: &Path) -> Result<PathBuf> {
    debian::docker().context("Docker")?;
    let built = Build::Debug.file(paths, CRI_DOCKERD);
    // The present build, also after a reboot.
    fs::copy(&built, paths.node(node).join(CRI_DOCKERD)).with_context(|| format!("copying {}", built.display()))?;
    let config = disk.join(DOCKER_CONFIG);
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
fn start_docker(paths: &Paths, node: NodeId) -> Result<u32> {
    let mut command = reloadable(&debian::docker()?.daemon);
    command.arg(format!("--containerd={SOCKET}")).arg(format!("--host=unix://{DOCKER_SOCKET}"));
    command.args(fs::read_to_string(DOCKER_FLAGS).unwrap_or_default().lines());
    run(command, "dockerd", paths, node)
}

/// Starts the stand-in for cri-dockerd, likewise.
fn start_cri(paths: &Paths, node: NodeId) -> Result<u32> {
    let mut command = Command::new(paths.node(node).join(CRI_DOCKERD));
    command.args([CRI_SOCKET, SOCKET, DOCKER_SOCKET]);
    run(command, CRI_DOCKERD, paths, node)
}

fn run(mut command: Command, name: &str, paths: &Paths, node: NodeId) -> Result<u32> {
    let log = append(&paths.log(&format!("{name}.{}", node.name())))?;
    spawn_detached(command.env("PATH", Containerd::One.search_path(paths)), log)
}
