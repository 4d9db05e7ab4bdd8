//! A real node of the running cluster, as a test sees it: what happens to its machine, its kubelet and its container runtime.

use anyhow::{Context, Result, bail};
use standin_node::driver::proc_devices::UVM_MAJOR;

use crate::{
    Containerd, images, machines, node,
    paths::Paths,
    standin::Standin,
    state::{NodeId, State},
};

/// A driver that the node's own system brings, as a cloud's image with drivers does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostDriver {
    /// None.
    Absent,
    /// This version's library is installed, but its kernel module is not loaded.
    Installed(String),
    /// This version is installed and loaded, with its device nodes.
    Loaded(String),
}

/// One of the cluster's real nodes.
///
/// All of it blocks: a second or two for most, up to half a minute for what waits for the node.
#[derive(Clone)]
pub struct RealNode {
    paths: Paths,
    state: State,
    id: NodeId,
}

impl RealNode {
    pub(crate) fn new(paths: Paths, state: State, id: NodeId) -> Self {
        Self { paths, state, id }
    }

    /// The name of its Node.
    #[must_use]
    pub fn name(&self) -> String {
        self.id.name()
    }

    /// Ends kubelet; pods go on.
    ///
    /// # Errors
    /// If it does not end.
    pub fn stop_kubelet(&self) -> Result<()> {
        node::stop_kubelet(&self.paths, self.id)
    }

    /// Starts kubelet if it does not run.
    ///
    /// # Errors
    /// If it does not start.
    pub fn start_kubelet(&self) -> Result<()> {
        if node::is_running(&self.paths, self.id) {
            return Ok(());
        }
        node::start_kubelet(&self.paths, &self.state, self.id)
    }

    /// What steers the stand-ins.
    #[must_use]
    pub fn standin(&self) -> Standin {
        Standin::new(self.paths.standin(self.id))
    }

    /// Runs a command in the node, as root, and returns what it printed. The node has the machine's programs.
    ///
    /// # Errors
    /// If the command fails, what it wrote to standard error.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        node::exec(&self.paths, &self.state, self.id, command)
    }

    /// Ends kubelet and starts it anew; pods go on.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart_kubelet(&self) -> Result<()> {
        node::restart_kubelet(&self.paths, &self.state, self.id)
    }

    /// Which containerd it runs.
    #[must_use]
    pub fn containerd(&self) -> Containerd {
        machines::containerd(self.id)
    }

    /// How often containerd was started since the node was switched on: the node does so whenever it ends.
    ///
    /// # Errors
    /// If the node does not run.
    pub fn containerd_starts(&self) -> Result<usize> {
        Ok(node::containerd_starts(&self.paths, &self.state, self.id)?.len())
    }

    /// Ends containerd, which the node starts again; containers go on.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart_containerd(&self) -> Result<()> {
        node::restart_containerd(&self.paths, &self.state, self.id)
    }

    /// Switches the node off and on again: every process and mount of it is gone, with all that lay in memory, such as
    /// /run, /dev and the loaded driver; what lay on disk is there. Returns when kubelet has been started.
    ///
    /// # Errors
    /// If the node does not start.
    pub fn reboot(&self) -> Result<()> {
        node::reboot(&self.paths, &self.state, self.id)
    }

    /// Makes the node's own system bring a driver, or no longer. A reboot leaves it installed and not loaded.
    /// The operator knows of it once the probe has reported it; a policy applied before that may bring its own driver.
    ///
    /// # Errors
    /// If the node's files cannot be changed.
    pub fn set_host_driver(&self, driver: &HostDriver) -> Result<()> {
        let (version, loaded) = match driver {
            HostDriver::Absent => (None, false),
            HostDriver::Installed(version) => (Some(version.as_str()), false),
            HostDriver::Loaded(version) => (Some(version.as_str()), true),
        };
        if version.is_some_and(|version| !version.bytes().all(|b| b.is_ascii_digit() || b == b'.')) {
            bail!("a driver's version is digits and dots");
        }
        // Programs on the node may hold the old file open, so it is replaced and not written.
        let keep = |name: &str| {
            let (built, kept) = (images::built(&self.paths, name), self.paths.node(self.id).join(name));
            std::fs::copy(&built, &kept).with_context(|| format!("copying {}", built.display()))?;
            anyhow::Ok(kept.display().to_string())
        };
        let (library, program) = (keep("libstandin_nvml.so")?, keep("nvidia-smi")?);
        self.exec(&[
            "/bin/sh",
            "-ec",
            HOST_DRIVER,
            "host-driver",
            &library,
            version.unwrap_or_default(),
            if loaded { "loaded" } else { "" },
            &program,
            &UVM_MAJOR.to_string(),
        ])?;
        self.standin().set_module(version.filter(|_| loaded))
    }

    /// Makes the folder into which installers put drivers one in which the stand-in driver's library finds what a real one
    /// asks the kernel for; or takes it away with all that is in it.
    ///
    /// # Errors
    /// If the node's files cannot be changed.
    pub fn set_install_dir(&self, there: bool) -> Result<()> {
        self.exec(&["/bin/sh", "-ec", INSTALL_DIR, "install-dir", if there { "there" } else { "" }]).map(drop)
    }
}

/// Argument: `there`, or nothing.
const INSTALL_DIR: &str = "
folder=/home/kubernetes/bin/nvidia
if mountpoint -q $folder/etc/standin; then umount --lazy $folder/etc/standin; fi
rm -rf $folder
if [ -n \"$1\" ]; then
  mkdir -p $folder/etc/standin
  mount --bind /run/nvidia/standin $folder/etc/standin
fi
";

/// Arguments: the stand-in library, the version or nothing, `loaded` or nothing, the stand-in of nvidia-smi, the major of
/// nvidia-uvm.
const HOST_DRIVER: &str = "
folder=/usr/lib/x86_64-linux-gnu
for kernel in $folder/libnvidia-standin.so.*; do
  if mountpoint -q $kernel; then umount --lazy $kernel; fi
done
rm -f $folder/libnvidia-ml.so.* $folder/libnvidia-standin.so.* $folder/libcuda.so.* /usr/bin/nvidia-smi /usr/bin/nvidia-cuda-mps-* /dev/nvidia*
if mountpoint -q /etc/standin; then umount --lazy /etc/standin; fi
if [ -n \"$2\" ]; then
  cp \"$1\" $folder/libnvidia-ml.so.$2
  cp \"$4\" /usr/bin/nvidia-smi
  ln -s libnvidia-ml.so.$2 $folder/libnvidia-ml.so.1
  cp \"$1\" $folder/libcuda.so.$2
  ln -s libcuda.so.$2 $folder/libcuda.so.1
  touch $folder/libnvidia-standin.so.$2
  mount --bind /run/nvidia/standin/lock/nvml.lock $folder/libnvidia-standin.so.$2
  mkdir -p /etc/standin
  mount --bind /run/nvidia/standin /etc/standin
fi
if [ -n \"$3\" ]; then
  minor=0
  for device in /sys/bus/pci/devices/*/; do
    [ -d \"$device\" ] || continue
    mknod -m 666 /dev/nvidia$minor c 195 $minor
    minor=$((minor + 1))
  done
  mknod -m 666 /dev/nvidiactl c 195 255
  mknod -m 666 /dev/nvidia-uvm c \"$5\" 0
  mknod -m 666 /dev/nvidia-uvm-tools c \"$5\" 1
fi
";
