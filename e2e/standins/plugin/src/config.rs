//! The configuration of NVIDIA's plugin.

use std::{
    env,
    path::{Path, PathBuf},
};

/// The paths that the plugin uses, set by the environment variables of NVIDIA's plugin.
#[derive(Clone, Debug)]
pub struct Config {
    /// `NVIDIA_DRIVER_ROOT`, the driver root on the node, as the container runtime sees it.
    pub driver_root: PathBuf,
    /// `NVIDIA_DEV_ROOT`, the folder on the node whose `dev` has the device nodes; defaults to the driver root.
    pub dev_root: PathBuf,
    /// `DRIVER_ROOT_CTR_PATH`, the driver root as this process sees it.
    pub driver_root_here: PathBuf,
    /// `KUBELET_SOCKET`; the plugin's own socket is in the same folder.
    pub kubelet_socket: PathBuf,
    /// `CDI_ROOT`, the folder of the specification.
    pub cdi_root: PathBuf,
    /// `NVIDIA_CDI_HOOK_PATH`, the toolkit's hook on the node; without it the specification has no hook.
    pub hook: Option<PathBuf>,
}

impl Config {
    /// Returns the folder in which this process sees the device nodes: a privileged container has those of the node.
    pub(crate) fn dev_here(&self) -> PathBuf {
        let root = if self.dev_root == self.driver_root { self.driver_root_here.as_path() } else { Path::new("/") };
        root.join("dev")
    }

    /// Returns the configuration that the environment sets.
    pub fn from_env() -> Self {
        let path = |name, default: &str| PathBuf::from(env::var_os(name).unwrap_or_else(|| default.into()));
        let driver_root = path("NVIDIA_DRIVER_ROOT", "/run/nvidia/driver");
        Self {
            dev_root: env::var_os("NVIDIA_DEV_ROOT").map_or_else(|| driver_root.clone(), PathBuf::from),
            driver_root,
            driver_root_here: path("DRIVER_ROOT_CTR_PATH", "/driver-root"),
            kubelet_socket: path("KUBELET_SOCKET", "/var/lib/kubelet/device-plugins/kubelet.sock"),
            cdi_root: path("CDI_ROOT", "/var/run/cdi"),
            hook: env::var_os("NVIDIA_CDI_HOOK_PATH").map(PathBuf::from),
        }
    }
}
