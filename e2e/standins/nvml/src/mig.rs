//! MIG: how a GPU is divided, kept in a file of its own beside `gpus.json` so that all programs see the same.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{library::Library, machine::Device, status::Status};

/// The file, in the stand-in's folder: by PCI address how each GPU is divided.
const FILE: &str = "mig.json";

/// What `gpus.json` says of MIG on a GPU that has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Mig {
    /// A change of the mode holds only once `needsReset` is false again.
    pub needs_reset: bool,
    /// Programs that use the GPU or an instance of it.
    pub clients: Vec<Client>,
}

/// A program that uses a GPU.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Client {
    /// Its process.
    pub pid: u32,
    /// The instance that it uses; absent: the GPU as a whole.
    #[serde(default)]
    pub instance: Option<u32>,
}

/// How a GPU is divided.
#[derive(Clone, Debug, Default, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase", default)]
pub struct Division {
    /// Whether MIG is on.
    pub enabled: bool,
    /// Whether it will be after a reset.
    pub pending: bool,
    /// What it is divided into.
    pub instances: Vec<Instance>,
}

/// A GPU instance.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Its number.
    pub id: u32,
    /// Its profile's number.
    pub profile: u32,
    /// Its first memory slice.
    pub start: u32,
    /// Whether it has a compute instance, which takes all of it.
    pub compute: bool,
}

/// A profile. The numbers are those of NVIDIA's GPUs with seven compute slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// NVML's place of it in the list of all profiles that there are.
    pub index: u32,
    /// Its number.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// Memory slices, of eight.
    pub size: u32,
    /// How many there can be at once.
    pub most: u32,
    /// What follows its size in its name.
    pub suffix: &'static str,
    /// Where it can begin.
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

/// What an instance has of a GPU's engines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Engines {
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Copy engines.
    pub copy: u32,
    /// Decoders.
    pub decoders: u32,
    /// Engines for JPEG.
    pub jpeg: u32,
    /// Engines for optical flow.
    pub ofa: u32,
}

impl Profile {
    /// The one at this place of NVML's list.
    ///
    /// # Errors
    /// [`Status::NotSupported`] where there is none.
    pub fn at(index: u32) -> Result<Self, Status> {
        PROFILES.into_iter().find(|profile| profile.index == index).ok_or(Status::NotSupported)
    }

    /// The one of this number.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] where there is none.
    pub fn numbered(id: u32) -> Result<Self, Status> {
        PROFILES.into_iter().find(|profile| profile.id == id).ok_or(Status::InvalidArgument)
    }

    /// All profiles.
    #[must_use]
    pub fn all() -> [Self; 7] {
        PROFILES
    }

    /// Its name on a GPU with so much memory.
    #[must_use]
    pub fn name(self, memory_mib: u64) -> String {
        // Rounded, as in 71 of 141 GB.
        let eighths = memory_mib.div_ceil(1024) * u64::from(self.size);
        format!("MIG {}g.{}gb{}", self.slices, (eighths + 4) / 8, self.suffix)
    }

    /// The memory, in MiB, of one on a GPU with so much.
    #[must_use]
    pub fn memory_mib(self, memory_mib: u64) -> u64 {
        // Half a GiB of each is the driver's.
        (memory_mib.div_ceil(1024) * 128 * u64::from(self.size)).saturating_sub(512)
    }

    /// What it has of a GPU's engines.
    #[must_use]
    pub fn engines(self, device: &Device) -> Engines {
        let Some(parts) = device.model().mig else { return Engines::default() };
        let place = PROFILES.iter().position(|profile| *profile == self).unwrap_or_default();
        let of = |all: [u32; 7]| all.get(place).copied().unwrap_or_default();
        Engines {
            multiprocessors: of(parts.multiprocessors),
            copy: of(parts.copy_engines),
            decoders: of(parts.decoders),
            jpeg: of(parts.jpeg),
            // There is one for optical flow, which goes with all of the GPU or with the media extensions.
            ofa: (self.slices == 7 || !self.suffix.is_empty()).into(),
        }
    }

    fn overlaps(self, start: u32, other: &Instance) -> bool {
        let size = Self::numbered(other.profile).map_or(8, |profile| profile.size);
        start < other.start + size && other.start < start + self.size
    }
}

impl Library {
    /// How a GPU is divided.
    ///
    /// # Errors
    /// [`Status::NotSupported`] for one without MIG.
    pub fn division(&self, device: &Device) -> Result<Division, Status> {
        let Some(mig) = &device.mig else {
            return if device.has_mig() { Ok(Division::default()) } else { Err(Status::NotSupported) };
        };
        let mut division = self.divisions()?.remove(&device.pci_address).unwrap_or_default();
        if !mig.needs_reset && division.enabled != division.pending {
            division = Division { enabled: division.pending, pending: division.pending, instances: Vec::new() };
        }
        Ok(division)
    }

    /// Turns MIG on or off, or says that only a reset does it.
    ///
    /// # Errors
    /// [`Status::InUse`] while somebody uses the GPU, and those of [`Library::division`].
    pub fn set_mig_mode(&self, device: &Device, on: bool) -> Result<(), Status> {
        let mig = device.mig.as_ref().ok_or(Status::NotSupported)?;
        let division = self.division(device)?;
        if !division.instances.is_empty() || !mig.clients.is_empty() {
            return Err(Status::InUse);
        }
        let enabled = if mig.needs_reset { division.enabled } else { on };
        self.keep(device, Division { enabled, pending: on, ..division })
    }

    /// Makes an instance; gives its number.
    ///
    /// # Errors
    /// [`Status::InsufficientResources`] where there is no room, [`Status::NotSupported`] where MIG is off.
    pub fn create_instance(&self, device: &Device, profile: u32, start: u32) -> Result<u32, Status> {
        let mut division = self.division(device)?;
        let profile = Profile::numbered(profile)?;
        if !division.enabled {
            return Err(Status::NotSupported);
        }
        if !profile.starts.contains(&start) || division.instances.iter().any(|other| profile.overlaps(start, other)) {
            return Err(Status::InsufficientResources);
        }
        // There are seven at most, so that one of eight numbers is free.
        let free = |id: &u32| division.instances.iter().all(|other| other.id != *id);
        let id = (1..=8).find(free).ok_or(Status::InsufficientResources)?;
        division.instances.push(Instance { id, profile: profile.id, start, compute: false });
        self.keep(device, division)?;
        Ok(id)
    }

    /// Destroys an instance.
    ///
    /// # Errors
    /// [`Status::InUse`] while it has a compute instance, [`Status::InvalidArgument`] where it is not there.
    pub fn destroy_instance(&self, device: &Device, id: u32) -> Result<(), Status> {
        let mut division = self.division(device)?;
        if instance(&mut division, id)?.compute {
            return Err(Status::InUse);
        }
        division.instances.retain(|instance| instance.id != id);
        self.keep(device, division)
    }

    /// Gives an instance its compute instance, or takes it away.
    ///
    /// # Errors
    /// [`Status::InUse`] while somebody uses it, [`Status::InsufficientResources`] where it has one already.
    pub fn set_compute(&self, device: &Device, id: u32, compute: bool) -> Result<(), Status> {
        let mut division = self.division(device)?;
        let is_used = device.mig.iter().flat_map(|mig| &mig.clients).any(|client| client.instance == Some(id));
        let instance = instance(&mut division, id)?;
        if instance.compute == compute {
            return Err(if compute { Status::InsufficientResources } else { Status::InvalidArgument });
        }
        if is_used {
            return Err(Status::InUse);
        }
        instance.compute = compute;
        self.keep(device, division)
    }

    fn divisions(&self) -> Result<BTreeMap<String, Division>, Status> {
        let Ok(text) = self.read(FILE) else { return Ok(BTreeMap::new()) };
        serde_json::from_str(&text).map_err(|_| Status::Unknown)
    }

    fn keep(&self, device: &Device, division: Division) -> Result<(), Status> {
        let mut all = self.divisions()?;
        all.insert(device.pci_address.clone(), division);
        self.replace(FILE, &all)
    }
}

fn instance(division: &mut Division, id: u32) -> Result<&mut Instance, Status> {
    division.instances.iter_mut().find(|instance| instance.id == id).ok_or(Status::InvalidArgument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_named_by_their_part_of_the_memory() {
        let names = |mib| PROFILES.map(|profile| profile.name(mib).replace("MIG ", "")).join(" ");
        assert_eq!(names(81_559), "1g.10gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb 1g.10gb+me 1g.20gb");
        assert_eq!(names(40_960), "1g.5gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb 1g.5gb+me 1g.10gb");
        assert_eq!(names(143_771), "1g.18gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb 1g.18gb+me 1g.35gb", "H200");
        assert_eq!(names(183_359), "1g.23gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb 1g.23gb+me 1g.45gb", "B200");
    }
}
