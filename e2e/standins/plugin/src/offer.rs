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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_sets_replicas_and_resource_name() {
        let of = |text: &str| {
            let offer = Offer::of_config(&serde_json::from_str(text).unwrap());
            let gpu = Gpu { uuid: "GPU-a".into(), minor: 0, profile: None, healthy: true };
            (offer.resource_of(&gpu), offer.replicas)
        };
        assert_eq!(of(r#"{"version": "v1"}"#), ("nvidia.com/gpu".into(), 1));
        let slices = r#"{"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}"#;
        assert_eq!(of(slices), ("nvidia.com/gpu".into(), 4));
        let renamed = r#"{"sharing": {"mps": {"renameByDefault": true, "resources": [{"replicas": 2}]}}}"#;
        assert_eq!(of(renamed), ("nvidia.com/gpu.shared".into(), 2));
    }

    #[test]
    fn a_mig_device_is_offered_as_a_gpu_or_by_its_profile() {
        let part = Gpu { uuid: "MIG-a".into(), minor: 0, profile: Some("1g.10gb".into()), healthy: true };
        let mixed = Offer { by_profile: true, ..Offer::default() };
        assert_eq!(mixed.resource_of(&part), "nvidia.com/mig-1g.10gb");
        assert_eq!(Offer { renamed: true, ..mixed }.resource_of(&part), "nvidia.com/mig-1g.10gb.shared");
        assert_eq!(Offer::default().resource_of(&part), "nvidia.com/gpu");
    }

    #[test]
    fn the_id_of_a_replica_maps_to_its_gpu() {
        let offer = Offer { replicas: 2, ..Offer::default() };
        let ids: Vec<_> = offer.ids("GPU-a").collect();
        assert_eq!(ids, ["GPU-a::0", "GPU-a::1"]);
        assert!(ids.iter().all(|id| Offer::gpu(id) == "GPU-a") && Offer::gpu("GPU-b") == "GPU-b");
        assert_eq!(Offer::default().ids("GPU-a").collect::<Vec<_>>(), ["GPU-a"]);
    }
}
