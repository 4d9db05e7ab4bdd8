//! The containerd of a node: its version, its configuration and its process.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::Result;
use harness::{
    files::{append, write},
    images::PAUSE_IMAGE,
    node_id::NodeId,
    paths::Paths,
    process::{reloadable, spawn_detached},
};

const PROGRAM: &str = "containerd";
/// The path of its socket in its node.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// The path of its configuration in its node, relative to the root. NVIDIA's installer expects it there.
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
    pub fn configure(self, disk: &Path, runc: &Path) -> Result<()> {
        if disk.join(CONFIG).exists() {
            // After a reboot the configuration keeps what was installed into it, as on a real machine.
            return Ok(());
        }
        // No gateway: pods need an address but no connections, and the machine gets no route into their network.
        let network = serde_json::json!({
            "cniVersion": "1.0.0",
            "name": "gpu-operator-e2e",
            "plugins": [{
                "type": "bridge",
                "bridge": "pods",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.19.0.0/16"}]]},
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
