//! A handle on a real node of the running cluster, for tests: its machine, its kubelet and its container runtime.

use anyhow::{Context, Result, bail};
use harness::{cargo::Build, debian, node_id::NodeId, paths::Paths};
use standin_node::{FOLDER, driver::devices::UVM_MAJOR};

use super::{
    control,
    runtime::{self, Runtime},
};
use crate::{standin::Standin, state::State};

/// The driver of the node's own operating system image, as on clouds whose images have drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostDriver {
    /// No driver.
    Absent,
    /// The library of this version is installed, but its kernel module is not loaded.
    Installed(String),
    /// This version is installed and loaded, and has its device nodes.
    Loaded(String),
}

/// One of the cluster's real nodes.
///
/// All functions block: most for a second or two, those that wait for the node for up to half a minute.
#[derive(Clone)]
pub struct RealNode {
    paths: Paths,
    state: State,
    id: NodeId,
}

impl RealNode {
    /// Returns a handle on a node of this cluster.
    pub fn new(paths: Paths, state: State, id: NodeId) -> Self {
        Self { paths, state, id }
    }

    /// Returns the name of its Node object.
    pub fn name(&self) -> String {
        self.id.name()
    }

    /// Stops kubelet. Pods keep running.
    pub fn stop_kubelet(&self) -> Result<()> {
        control::stop_kubelet(&self.paths, self.id)
    }

    /// Starts kubelet if it is not running.
    pub fn start_kubelet(&self) -> Result<()> {
        if control::is_running(&self.paths, self.id) {
            return Ok(());
        }
        control::start_kubelet(&self.paths, &self.state, self.id)
    }

    /// Returns the folder that controls its stand-ins.
    pub fn standin(&self) -> Standin {
        Standin::new(self.paths.standin(self.id))
    }

    /// Runs a command in the node as root and returns its standard output. The node has the machine's programs.
    pub fn exec(&self, command: &[&str]) -> Result<String> {
        control::exec(&self.paths, &self.state, self.id, command)
    }

    /// Lists what the node has in addition to the machine: changed files with their checksums, device nodes, and mounts. Container
    /// images, logs, the files of pods, the state of kubelet and containerd and the boot's ID are left out, and so is what is mounted
    /// below: the root of a driver's container that could not be unloaded contains /proc, where reading some files never ends. Of
    /// Docker its runtimes are listed.
    pub fn inventory(&self) -> Result<Vec<String>> {
        let disk = self.paths.node(self.id).join("upper").display().to_string();
        let mut listed = self.exec(&["/bin/sh", "-ec", INVENTORY, "inventory", &disk])?;
        if self.runtime() == Runtime::Docker {
            listed += &self.docker_runtimes()?;
        }
        Ok(listed.lines().map(|line| line.replace(&disk, "")).collect())
    }

    /// Restarts kubelet. Pods keep running.
    pub fn restart_kubelet(&self) -> Result<()> {
        control::restart_kubelet(&self.paths, &self.state, self.id)
    }

    /// Returns its container runtime.
    pub fn runtime(&self) -> Runtime {
        Runtime::of(self.id)
    }

    /// Returns how often containerd was started since the node's boot. The node restarts containerd whenever it ends.
    pub fn containerd_starts(&self) -> Result<usize> {
        Ok(control::containerd_starts(&self.paths, &self.state, self.id)?.len())
    }

    /// Ends containerd, and waits until the node has started it again. Containers keep running.
    pub fn restart_containerd(&self) -> Result<()> {
        control::restart_containerd(&self.paths, &self.state, self.id)
    }

    /// Switches the node off and on. Its processes and mounts end, and so does what is only in memory, such as `/run`, `/dev`
    /// and the loaded driver; its disk stays. Returns when kubelet has been started.
    pub fn reboot(&self) -> Result<()> {
        control::reboot(&self.paths, &self.state, self.id)
    }

    /// Installs or removes a driver of the node's own operating system image. After a reboot it is installed but not loaded.
    /// The operator sees it once the probe has reported it; a policy that is applied earlier may install its own driver.
    pub fn set_host_driver(&self, driver: &HostDriver) -> Result<()> {
        let (version, loaded) = match driver {
            HostDriver::Absent => (None, false),
            HostDriver::Installed(version) => (Some(version.as_str()), false),
            HostDriver::Loaded(version) => (Some(version.as_str()), true),
        };
        if version.is_some_and(|version| !version.bytes().all(|b| b.is_ascii_digit() || b == b'.')) {
            bail!("a driver version consists of digits and dots");
        }
        // Programs on the node may have the old files open, so the script replaces them instead of writing to them.
        let copy = |name: &str| {
            let (built, copy) = (Build::Debug.file(&self.paths, name), self.paths.node(self.id).join(name));
            std::fs::copy(&built, &copy).with_context(|| format!("copying {}", built.display()))?;
            anyhow::Ok(copy.display().to_string())
        };
        let (library, program) = (copy("libstandin_nvml.so")?, copy("nvidia-smi")?);
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
            FOLDER,
        ])?;
        self.standin().set_module(version.filter(|_| loaded))
    }

    /// Restarts Docker with these flags in addition to those that it always has, and waits until it answers.
    /// Containers keep running.
    pub fn restart_docker(&self, flags: &[&str]) -> Result<()> {
        let client = debian::docker()?.client.display().to_string();
        self.exec(&[
            "/bin/sh",
            "-ec",
            RESTART_DOCKER,
            "restart-docker",
            runtime::DOCKER_FLAGS,
            &flags.join("\n"),
            &client,
        ])
        .map(drop)
    }

    /// Returns Docker's default runtime and its runtimes.
    pub fn docker_runtimes(&self) -> Result<String> {
        let docker = debian::docker()?.client.display().to_string();
        self.exec(&[&docker, "info", "--format", "Docker {{.DefaultRuntime}} of {{.Runtimes}}"])
    }

    /// Creates the folders into which installers put drivers, with the files in which the stand-in driver's library finds what
    /// a real one asks the kernel for; or removes them with all that is in them.
    pub fn set_install_dir(&self, present: bool) -> Result<()> {
        self.exec(&["/bin/sh", "-ec", INSTALL_DIR, "install-dir", if present { FOLDER } else { "" }]).map(drop)
    }
}

/// Arguments: the file with the flags, its text, the program `docker`. The node's init system starts Docker again.
const RESTART_DOCKER: &str = "
if [ -n \"$2\" ]; then printf '%s' \"$2\" > \"$1\"; else rm -f \"$1\"; fi
before=$(pidof dockerd)
kill $before
tries=0
until [ -n \"$(pidof dockerd)\" ] && [ \"$(pidof dockerd)\" != \"$before\" ] && \"$3\" info >/dev/null 2>&1; do
  tries=$((tries + 1))
  [ $tries -lt 150 ]
  sleep 0.2
done
";

/// Argument: the folder that controls the stand-ins, or an empty string.
const INSTALL_DIR: &str = "
for folder in /home/kubernetes/bin/nvidia /opt/nvidia; do
  if mountpoint -q $folder/etc/standin; then umount --lazy $folder/etc/standin; fi
  rm -rf $folder
  if [ -n \"$1\" ]; then
    mkdir -p $folder/etc/standin
    mount --bind \"$1\" $folder/etc/standin
  fi
done
";

/// Argument: the folder with the changed files of the disk.
const INVENTORY: &str = "
find \"$1\" /run /dev /tmp /var/lib/kubelet -xdev \\
  \\( -path \"$1/var/log\" -o -path '/run/containerd*' -o -path /run/netns -o -path '/var/lib/kubelet/pods/*' \\
     -o -path '/var/lib/kubelet/*_state' -o -name kubelet_internal_checkpoint \\
     -o -path /run/boot-id \\) -prune \\
  -o -type f -exec sha256sum {} + -o -printf '%M %p %l\\n'
cut --delimiter=' ' --fields=5 /proc/self/mountinfo | grep -v -e ^/run/containerd -e ^/run/netns -e ^/var/lib/kubelet/pods | sed 's/^/mount /'
";

/// Arguments: the stand-in library; the version, or an empty string; `loaded`, or an empty string; the stand-in of nvidia-smi;
/// the major number of nvidia-uvm; the folder that controls the stand-ins.
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
  mount --bind \"$6/lock/nvml.lock\" $folder/libnvidia-standin.so.$2
  mkdir -p /etc/standin
  mount --bind \"$6\" /etc/standin
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
