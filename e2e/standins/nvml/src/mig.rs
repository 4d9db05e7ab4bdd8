//! What MIG makes of a GPU: profiles, instances, and the state of a divided GPU.

use serde::{Deserialize, Serialize};

use crate::{model::Model, status::Status};

/// The settings in `gpus.json` for a GPU that supports MIG.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mig {
    /// While true, a change of the MIG mode is pending; it takes effect once `needsReset` is false.
    pub needs_reset: bool,
    /// Programs that use the GPU or an instance of it.
    pub clients: Vec<Client>,
}

/// A program that uses a GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Client {
    /// The process id.
    pub pid: u32,
    /// The instance that it uses. If unset, it uses the GPU as a whole.
    #[serde(default)]
    pub instance: Option<u32>,
}

/// The MIG state of a GPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Division {
    pub enabled: bool,
    /// Whether MIG will be on after a reset.
    pub pending: bool,
    pub instances: Vec<Instance>,
}

/// A GPU instance.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    pub id: u32,
    /// Its profile's id.
    pub profile: u32,
    /// Its first memory slice.
    pub start: u32,
    /// Whether it has a compute instance, which always uses the whole instance.
    pub compute: bool,
}

/// A profile. The ids are those of NVIDIA's GPUs with seven compute slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its index in NVML's list of all profiles.
    pub index: u32,
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Memory slices. A GPU has eight.
    pub size: u32,
    /// The maximum number of its instances on a GPU.
    pub most: u32,
    /// The end of its name, after the size.
    pub suffix: &'static str,
    /// The memory slices at which an instance can start.
    pub starts: &'static [u32],
}

const PROFILES: [Profile; 7] = [
    Profile { index: 0, id: 19, slices: 1, size: 1, most: 7, suffix: "", starts: &[0, 1, 2, 3, 4, 5, 6] },
    Profile { index: 1, id: 14, slices: 2, size: 2, most: 3, suffix: "", starts: &[0, 2, 4] },
    Profile { index: 2, id: 9, slices: 3, size: 4, most: 2, suffix: "", starts: &[0, 4] },
    Profile { index: 3, id: 5, slices: 4, size: 4, most: 1, suffix: "", starts: &[0] },
    Profile { index: 4, id: 0, slices: 7, size: 8, most: 1, suffix: "", starts: &[0] },
    Profile { index: 7, id: 20, slices: 1, size: 1, most: 1, suffix: "+me", starts: &[0, 1, 2, 3, 4, 5, 6] },
    Profile { index: 9, id: 15, slices: 1, size: 2, most: 4, suffix: "", starts: &[0, 2, 4, 6] },
];

/// The multiprocessors and engines of an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    pub multiprocessors: u32,
    pub copy: u32,
    pub decoders: u32,
    pub jpeg: u32,
    /// Engines for optical flow.
    pub ofa: u32,
}

impl Profile {
    /// Returns the profile at this index of NVML's list.
    pub fn at(index: u32) -> Result<Self, Status> {
        PROFILES.into_iter().find(|profile| profile.index == index).ok_or(Status::NotSupported)
    }

    pub fn numbered(id: u32) -> Result<Self, Status> {
        PROFILES.into_iter().find(|profile| profile.id == id).ok_or(Status::InvalidArgument)
    }

    pub fn all() -> [Self; 7] {
        PROFILES
    }

    /// Returns its name on a GPU with this much memory.
    pub fn name(self, memory_mib: u64) -> String {
        // Rounded, such as 71 of 141 GB.
        let eighths = memory_mib.div_ceil(1024) * u64::from(self.size);
        format!("MIG {}g.{}gb{}", self.slices, (eighths + 4) / 8, self.suffix)
    }

    /// Returns the memory of an instance in MiB, on a GPU with this much memory.
    pub fn memory_mib(self, memory_mib: u64) -> u64 {
        // The driver reserves half a GiB of each.
        (memory_mib.div_ceil(1024) * 128 * u64::from(self.size)).saturating_sub(512)
    }

    /// Returns the multiprocessors and engines of an instance on a GPU of this model.
    pub fn engines(self, model: &Model) -> Engines {
        let Some(parts) = model.mig else { return Engines::default() };
        let place = PROFILES.iter().position(|profile| *profile == self).unwrap_or_default();
        let of = |all: [u32; 7]| all.get(place).copied().unwrap_or_default();
        Engines {
            multiprocessors: of(parts.multiprocessors),
            copy: of(parts.copy_engines),
            decoders: of(parts.decoders),
            jpeg: of(parts.jpeg),
            // The only engine for optical flow belongs to the profile of the whole GPU or to one with media extensions.
            ofa: (self.slices == 7 || !self.suffix.is_empty()).into(),
        }
    }

    /// Returns whether an instance of this profile, starting at this memory slice, would overlap another instance.
    pub(crate) fn overlaps(self, start: u32, other: &Instance) -> bool {
        let size = Self::numbered(other.profile).map_or(8, |profile| profile.size);
        start < other.start + size && other.start < start + self.size
    }
}
