//! The running cluster, as a test sees it.

use std::{path::PathBuf, process::Command};

use anyhow::{Context, Result, bail};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use standin_node::driver::proc_devices::UVM_MAJOR;

use crate::{
    audit::Audit,
    chart, images, lifecycle, node,
    paths::Paths,
    pki,
    process::output,
    standin::Standin,
    state::{NODE_NAME, State},
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

/// A handle on the cluster that `cargo xtask` started in this checkout.
///
/// What is not `async` here blocks: a second or two for most, up to half a minute for what waits for the node.
#[derive(Clone)]
pub struct Cluster {
    paths: Paths,
    state: State,
    client: Client,
}

impl Cluster {
    /// Connects to the running cluster.
    ///
    /// # Errors
    /// If none runs, with how to start one.
    pub async fn connect() -> Result<Self> {
        let paths = Paths::new();
        let state = lifecycle::running(&paths).context(
            "no cluster runs: `cargo xtask test` starts one for the tests, `cargo xtask up` one to work with",
        )?;
        let kubeconfig = Kubeconfig::read_from(paths.kubeconfig())?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok(Self { client: Client::try_from(config)?, paths, state })
    }

    /// A client with all rights.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The API server's address, `https://127.0.0.1:PORT`.
    #[must_use]
    pub fn server(&self) -> String {
        format!("https://127.0.0.1:{}", self.state.api_port)
    }

    /// Writes a file with which a client has the rights of one of the chart's service accounts, for a day; of a pod's
    /// token, if a pod is given, which tells the API server the pod's node as well.
    pub(crate) fn service_account(&self, name: &str, pod: Option<&str>) -> Result<PathBuf> {
        let mut args = vec!["create", "token", name, "--namespace", chart::RELEASE, "--duration=24h"];
        args.extend(pod.iter().flat_map(|pod| ["--bound-object-kind=Pod", "--bound-object-name", pod]));
        let token = self.kubectl(&args)?;
        let file = self.paths.cluster().join(format!("{name}.kubeconfig"));
        pki::kubeconfig(&file, self.state.api_port, &self.paths.cluster().join("pki/ca.crt"), token.trim())?;
        Ok(file)
    }

    pub(crate) fn paths(&self) -> &Paths {
        &self.paths
    }

    /// The file with which any client finds the cluster.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.paths.kubeconfig()
    }

    /// The name of the one node.
    #[must_use]
    pub fn node_name(&self) -> &'static str {
        NODE_NAME
    }

    /// The namespace of the chart's release.
    #[must_use]
    pub fn namespace(&self) -> &'static str {
        chart::RELEASE
    }

    /// Runs kubectl and returns what it printed.
    ///
    /// # Errors
    /// If it fails, what it wrote to standard error.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        chart::kubectl(&self.paths, args)
    }

    /// Runs helm and returns what it printed. The chart lies in [`Cluster::chart`].
    ///
    /// # Errors
    /// If it fails, what it wrote to standard error.
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        output(chart::helm(&self.paths).args(args))
    }

    /// The folder of the chart.
    #[must_use]
    pub fn chart(&self) -> PathBuf {
        self.paths.root.join("charts/gpu-operator")
    }

    /// A file with the values that the chart needs in this cluster.
    #[must_use]
    pub fn values(&self) -> PathBuf {
        chart::values_file(&self.paths)
    }

    /// The file of the example policy.
    #[must_use]
    pub fn policy(&self) -> PathBuf {
        chart::policy_file(&self.paths)
    }

    /// Installs the chart as `cargo xtask up` does, or upgrades it, and waits until its pods are available.
    ///
    /// # Errors
    /// If helm fails, with its words and the pods.
    pub fn install_chart(&self) -> Result<()> {
        chart::install(&self.paths, &self.state)
    }

    /// The API server's audit log.
    #[must_use]
    pub fn audit(&self) -> Audit {
        Audit::new(self.paths.logs().join("audit.log"))
    }

    /// What steers the stand-ins.
    #[must_use]
    pub fn standin(&self) -> Standin {
        Standin::new(self.paths.standin())
    }

    /// Runs a command in the node, as root, and returns what it printed. The node has the machine's programs.
    ///
    /// # Errors
    /// If the command fails, what it wrote to standard error.
    pub fn node_exec(&self, command: &[&str]) -> Result<String> {
        node::exec(&self.paths, &self.state, command)
    }

    /// Ends kubelet and starts it anew; pods go on.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart_kubelet(&self) -> Result<()> {
        node::restart_kubelet(&self.paths, &self.state)
    }

    /// Starts containerd if it has ended, which the node has no init system to do; says whether it had.
    ///
    /// # Errors
    /// If it does not start.
    pub fn revive_containerd(&self) -> Result<bool> {
        node::revive_containerd(&self.paths, &self.state)
    }

    /// Ends containerd and starts it anew; containers go on.
    ///
    /// # Errors
    /// If it does not start.
    pub fn restart_containerd(&self) -> Result<()> {
        node::restart_containerd(&self.paths, &self.state)
    }

    /// Switches the node off and on again: every process and mount of it is gone, with all that lay in memory, such as
    /// /run, /dev and the loaded driver; what lay on disk is there. Returns when kubelet has been started.
    ///
    /// # Errors
    /// If the node does not start.
    pub fn reboot(&self) -> Result<()> {
        node::reboot(&self.paths, &self.state)
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
            let (built, kept) = (images::built(&self.paths, name), self.paths.cluster().join(name));
            std::fs::copy(&built, &kept).with_context(|| format!("copying {}", built.display()))?;
            anyhow::Ok(kept.display().to_string())
        };
        let (library, program) = (keep("libstandin_nvml.so")?, keep("nvidia-smi")?);
        self.node_exec(&[
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
        self.node_exec(&["/bin/sh", "-ec", INSTALL_DIR, "install-dir", if there { "there" } else { "" }]).map(drop)
    }

    /// All that tells why a test failed, as text: pods, events, policies, GPU nodes, logs.
    #[must_use]
    pub fn diagnosis(&self) -> String {
        chart::diagnosis(&self.paths)
    }

    /// A command that is not [`Cluster::kubectl`] or [`Cluster::helm`], with the cluster's kubeconfig in its environment.
    #[must_use]
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("KUBECONFIG", self.paths.kubeconfig());
        command
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
rm -f $folder/libnvidia-ml.so.* /usr/bin/nvidia-smi /dev/nvidia*
if mountpoint -q /etc/standin; then umount --lazy /etc/standin; fi
if [ -n \"$2\" ]; then
  cp \"$1\" $folder/libnvidia-ml.so.$2
  cp \"$4\" /usr/bin/nvidia-smi
  ln -s libnvidia-ml.so.$2 $folder/libnvidia-ml.so.1
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
