//! How GPUs are offered to the kubelet, as configured for NVIDIA's plugin: how many pods share a GPU, under which
//! resource name, and how containers get access to their GPUs.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::gpus::Gpu;

/// The resource that containers request.
pub const RESOURCE: &str = "nvidia.com/gpu";
/// The separator between a GPU and the number of one of its replicas.
const REPLICA: &str = "::";

/// How GPUs are offered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The number of pods that share a GPU.
    pub replicas: u32,
    /// Whether shared GPUs are offered under their own name.
    pub renamed: bool,
    /// Whether MIG devices are offered under the names of their profiles instead of as GPUs.
    pub by_profile: bool,
    /// How a container gets its GPUs.
    pub hand_over: HandOver,
}

/// How a container gets its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum HandOver {
    /// By CDI devices, for any runtime that knows CDI.
    #[default]
    Cdi,
    /// By `NVIDIA_VISIBLE_DEVICES`, for NVIDIA's own runtime.
    Environment,
    /// By device nodes and the driver's folder, as Google's plugin does; this works with any runtime.
    Mounts {
        /// The folder on the node.
        host: PathBuf,
        /// The folder in containers.
        container: PathBuf,
    },
}

impl Default for Offer {
    fn default() -> Self {
        Self { replicas: 1, renamed: false, by_profile: false, hand_over: HandOver::Cdi }
    }
}

impl Offer {
    /// Returns the settings from `DEVICE_LIST_STRATEGY`, `MIG_STRATEGY` and the file that `CONFIG_FILE` names.
    pub fn from_env() -> Result<Self> {
        let by_environment = env::var("DEVICE_LIST_STRATEGY").is_ok_and(|strategy| strategy == "envvar");
        let hand_over = if by_environment { HandOver::Environment } else { HandOver::Cdi };
        let file = env::var_os("CONFIG_FILE").filter(|file| !file.is_empty());
        let offer = file.map_or_else(|| Ok(Self::default()), |file| Self::of_file(Path::new(&file)))?;
        let by_profile = env::var("MIG_STRATEGY").is_ok_and(|strategy| strategy == "mixed");
        Ok(Self { by_profile, hand_over, ..offer })
    }

    fn of_file(file: &Path) -> Result<Self> {
        let text = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
        let config = serde_json::from_slice(&text).with_context(|| format!("reading {}", file.display()))?;
        Ok(Self::of_config(&config))
    }

    fn of_config(config: &Value) -> Self {
        let shared = ["timeSlicing", "mps"].iter().find_map(|kind| config["sharing"].get(kind));
        let Some(shared) = shared else { return Self::default() };
        let replicas = shared["resources"][0]["replicas"].as_u64().and_then(|replicas| replicas.try_into().ok());
        let renamed = shared["renameByDefault"].as_bool().unwrap_or_default();
        Self { replicas: replicas.unwrap_or(1), renamed, ..Self::default() }
    }

    /// Returns the resource by which containers request a GPU or a MIG device.
    pub fn resource_of(&self, gpu: &Gpu) -> String {
        let shared = if self.renamed { ".shared" } else { "" };
        match gpu.profile.as_ref().filter(|_| self.by_profile) {
            Some(profile) => format!("nvidia.com/mig-{profile}{shared}"),
            None => format!("{RESOURCE}{shared}"),
        }
    }

    /// Returns the device ids for the kubelet that represent a GPU.
    pub fn ids<'a>(&'a self, uuid: &'a str) -> impl Iterator<Item = String> + 'a {
        (0..self.replicas).map(
            move |replica| {
                if self.replicas == 1 { uuid.to_owned() } else { format!("{uuid}{REPLICA}{replica}") }
            },
        )
    }

    /// Returns the GPU that a device id represents.
    pub fn gpu(id: &str) -> &str {
        id.split_once(REPLICA).map_or(id, |(uuid, _)| uuid)
    }
}

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
