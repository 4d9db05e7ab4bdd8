//! A node's containerd: which one it is, its configuration, and the service that runs it.

use std::{
    fs,
    io::Write,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context, Result};

use crate::{images::PAUSE_IMAGE, paths::Paths, process::append, state::NodeId};

const PROGRAM: &str = "containerd";
/// Where it listens, inside its node.
pub(crate) const SOCKET: &str = "/run/containerd/containerd.sock";
/// Its configuration, inside its node, without the leading slash: NVIDIA's installer, too, finds it there.
const CONFIG: &str = "etc/containerd/config.toml";
/// The networks of pods, likewise.
const NETWORKS: &str = "etc/gpu-operator-e2e/cni";
/// The id of its process at each of its starts, a line each, inside its node.
pub(crate) const STARTS: &str = "/run/containerd.starts";

/// Which containerd a node runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Containerd {
    /// containerd 2, which takes CDI devices by itself.
    Two,
    /// containerd 1.7, which takes them only if its configuration says so, and it does not.
    One,
}

impl Containerd {
    /// The folder of its programs.
    fn programs(self, paths: &Paths) -> PathBuf {
        match self {
            Self::Two => paths.bin(),
            Self::One => paths.containerd_1(),
        }
    }

    /// Where the programs of a node that runs it are looked for.
    pub(crate) fn search_path(self, paths: &Paths) -> String {
        let (own, all) = (self.programs(paths), paths.bin());
        format!("{}:{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", own.display(), all.display())
    }

    fn config(self, paths: &Paths) -> String {
        let runc = paths.tool("runc");
        let runc = runc.display();
        // A machine that may not lower its own OOM score, such as a container, could start nothing without
        // restrict_oom_score_adj.
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

    /// Writes what it reads, at its place in the node.
    pub(crate) fn configure(self, paths: &Paths, node: NodeId) -> Result<()> {
        let root = paths.node(node).join("upper");
        if root.join(CONFIG).exists() {
            // A reboot: what was installed into the configuration stays, as on a real node.
            return Ok(());
        }
        // No gateway: pods need an address of their own but nothing to talk to, and the machine stays out of their network.
        let network = serde_json::json!({
            "cniVersion": "1.0.0",
            "name": "gpu-operator-e2e",
            "plugins": [{
                "type": "bridge",
                "bridge": "pods",
                "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.19.0.0/16"}]]},
            }],
        });
        write(&root.join(NETWORKS).join("10-bridge.conflist"), &network.to_string())?;
        write(&root.join(CONFIG), &self.config(paths))
    }

    /// Starts it in the node whose first process this is; its process.
    pub(crate) fn start(self, paths: &Paths, node: NodeId) -> Result<u32> {
        let log = append(&paths.log(&log(node)))?;
        // Whoever ran xtask may have it ignore SIGHUP, as nohup does, which containerd would inherit: it could not be told to
        // read its configuration.
        let child = Command::new("env")
            .arg("--default-signal=HUP")
            .arg(self.programs(paths).join(PROGRAM))
            .env("PATH", self.search_path(paths))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting {PROGRAM}"))?;
        writeln!(append(Path::new(STARTS))?, "{}", child.id())?;
        Ok(child.id())
    }
}

/// The name of a node's log of it.
pub(crate) fn log(node: NodeId) -> String {
    format!("{PROGRAM}.{}", node.name())
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}
