//! The probe as a process of this machine, of its release build, with the rights of a pod of the chart's DaemonSet.

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    cluster::Cluster,
    operator_process::Build,
    paths::Paths,
    process::tail,
    state::records,
    usage::{self, Mapped, Usage},
};

const NAME: &str = "probe-process";
const LIBRARY: &str = "libnvidia-ml.so";
/// How long it may take to end when asked to.
const GRACE: Duration = Duration::from_secs(10);

/// A probe that runs.
pub(crate) struct ProbeProcess {
    paths: Paths,
    log: PathBuf,
}

/// What probe and NVML child have cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct ProbeUsage {
    /// The probe itself.
    pub probe: Usage,
    /// Its NVML child, the library included.
    pub child: Usage,
    /// The library in the child's memory.
    pub library: Mapped,
    /// The child's id: another one means that the figures are of another process.
    pub child_id: u32,
}

impl ProbeProcess {
    /// Starts the probe of a node at its default intervals, with the rights of the pod, for which the host's root lies at
    /// `host`.
    pub(crate) fn start(cluster: &Cluster, node: &str, pod: &str, host: &Path) -> Result<Self> {
        let paths = cluster.paths().clone();
        let kubeconfig = cluster.service_account("nvml-probe", Some(pod))?;
        let program = Build::Release.file(&paths, "nvml-probe");
        let mut command = Command::new(&program);
        command.args(["run", "--no-chroot", "--node-name", node, "--host-root"]).arg(host);
        command.env("KUBECONFIG", kubeconfig).env("RUST_LOG", "info").env_remove("KUBERNETES_SERVICE_HOST");
        let log = paths.log(NAME);
        records(&paths)
            .spawn(NAME, &mut command, &log)
            .with_context(|| format!("{} (built by cargo?)", program.display()))?;
        Ok(Self { paths, log })
    }

    /// What both processes have cost since their start.
    pub(crate) fn usage(&self) -> Result<ProbeUsage> {
        let Some(id) = records(&self.paths).alive(NAME) else {
            bail!("the probe ended; {}", self.said());
        };
        let children = usage::children(id)?;
        let [child_id] = children[..] else {
            bail!(
                "the probe has {} child processes, and not one that answers for NVML; {}",
                children.len(),
                self.said()
            );
        };
        let library = usage::mapped(child_id, LIBRARY)?;
        Ok(ProbeUsage { probe: Usage::of(id)?, child: Usage::of(child_id)?, library, child_id })
    }

    /// Where its log lies, and the end of it.
    pub(crate) fn said(&self) -> String {
        format!("the end of {}:\n{}", self.log.display(), tail(&self.log, 3_000))
    }
}

/// Ends the probe's process, if there is one.
pub(crate) fn stop(paths: &Paths) -> Result<()> {
    records(paths).stop(NAME, GRACE)
}
