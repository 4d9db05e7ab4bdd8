//! The probe as a process of this machine, in its release build, with the rights of a pod of the chart's DaemonSet.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use cluster::clients::PROBE_PROCESS;
use harness::{
    cargo::Build,
    files::tail,
    paths::Paths,
    records::records,
    usage::{self, MappedMemory, Usage},
};

use super::handle::Cluster;

const LIBRARY: &str = "libnvidia-ml.so";

/// A running probe.
pub struct ProbeProcess {
    paths: Paths,
    log: PathBuf,
}

/// Memory and processor time of the probe and of its NVML child process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProbeUsage {
    /// The probe itself.
    pub probe: Usage,
    /// Its NVML child process, including the library.
    pub child: Usage,
    /// The library in the child's memory.
    pub library: MappedMemory,
    /// The child's process id. If it changes, the figures belong to another process.
    pub child_id: u32,
}

impl ProbeProcess {
    /// Starts the probe of a node with its default intervals and with the rights of `pod`. `host` is the host's root for it.
    pub fn start(cluster: &Cluster, node: &str, pod: &str, host: &Path) -> Result<Self> {
        let paths = cluster.paths().clone();
        let kubeconfig = cluster.service_account_kubeconfig("nodestack-nvml-probe", Some(pod))?;
        let program = Build::Release.file(&paths, "nvml-probe");
        let mut command = Command::new(&program);
        command.args(["run", "--no-chroot", "--node-name", node, "--host-root"]).arg(host);
        command.env("KUBECONFIG", kubeconfig).env("RUST_LOG", "info").env_remove("KUBERNETES_SERVICE_HOST");
        let log = paths.log(PROBE_PROCESS);
        records(&paths)
            .spawn(PROBE_PROCESS, &mut command, &log)
            .with_context(|| format!("{} (run cargo build first)", program.display()))?;
        Ok(Self { paths, log })
    }

    /// Returns the usage of both processes since their start.
    pub fn usage(&self) -> Result<ProbeUsage> {
        let Some(id) = records(&self.paths).alive(PROBE_PROCESS) else {
            bail!("the probe ended; {}", self.log_tail());
        };
        let children = usage::children(id)?;
        let [child_id] = children[..] else {
            bail!("expected one child process of the probe, found {}; {}", children.len(), self.log_tail());
        };
        let library = usage::mapped(child_id, LIBRARY)?;
        Ok(ProbeUsage { probe: Usage::of(id)?, child: Usage::of(child_id)?, library, child_id })
    }

    /// Returns the path and the end of its log, for messages.
    pub fn log_tail(&self) -> String {
        format!("the end of {}:\n{}", self.log.display(), tail(&self.log, 3_000))
    }
}
