//! The MIG instances of GPUs. They are stored in a file next to `gpus.json`, so that all programs see the same.

use crate::{
    library::Library,
    machine::Device,
    mig::{Division, Instance, Profile},
    status::Status,
};

/// The file in the stand-in's folder, with the MIG state of each GPU by PCI address.
const FILE: &str = "mig.json";

impl Library {
    /// Returns the MIG state of a GPU.
    pub fn division(&self, device: &Device) -> Result<Division, Status> {
        let Some(mig) = &device.mig else {
            return if device.has_mig() { Ok(Division::default()) } else { Err(Status::NotSupported) };
        };
        let mut division = self.stored::<Division>(FILE)?.remove(&device.pci_address).unwrap_or_default();
        if !mig.needs_reset && division.enabled != division.pending {
            division = Division { enabled: division.pending, pending: division.pending, instances: Vec::new() };
        }
        Ok(division)
    }

    /// Turns MIG on or off. If the GPU needs a reset, the change is only pending.
    pub fn set_mig_mode(&self, device: &Device, on: bool) -> Result<(), Status> {
        let mig = device.mig.as_ref().ok_or(Status::NotSupported)?;
        let division = self.division(device)?;
        if !division.instances.is_empty() || !mig.clients.is_empty() {
            return Err(Status::InUse);
        }
        let enabled = if mig.needs_reset { division.enabled } else { on };
        self.keep(device, Division { enabled, pending: on, ..division })
    }

    /// Creates an instance and returns its id.
    pub fn create_instance(&self, device: &Device, profile: u32, start: u32) -> Result<u32, Status> {
        let mut division = self.division(device)?;
        let profile = Profile::numbered(profile)?;
        if !division.enabled {
            return Err(Status::NotSupported);
        }
        if !profile.starts.contains(&start) || division.instances.iter().any(|other| profile.overlaps(start, other)) {
            return Err(Status::InsufficientResources);
        }
        // A GPU has at most seven instances, so one of eight ids is free.
        let free = |id: &u32| division.instances.iter().all(|other| other.id != *id);
        let id = (1..=8).find(free).ok_or(Status::InsufficientResources)?;
        division.instances.push(Instance { id, profile: profile.id, start, compute: false });
        self.keep(device, division)?;
        Ok(id)
    }

    pub fn destroy_instance(&self, device: &Device, id: u32) -> Result<(), Status> {
        let mut division = self.division(device)?;
        if instance(&mut division, id)?.compute {
            return Err(Status::InUse);
        }
        division.instances.retain(|instance| instance.id != id);
        self.keep(device, division)
    }

    /// Creates or destroys an instance's compute instance.
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

    fn keep(&self, device: &Device, division: Division) -> Result<(), Status> {
        let mut all = self.stored::<Division>(FILE)?;
        all.insert(device.pci_address.clone(), division);
        self.replace(FILE, &all)
    }
}

fn instance(division: &mut Division, id: u32) -> Result<&mut Instance, Status> {
    division.instances.iter_mut().find(|instance| instance.id == id).ok_or(Status::InvalidArgument)
}
