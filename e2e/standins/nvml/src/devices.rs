//! Finding GPUs: by what they are, and by their handles.

use crate::{
    library::Library,
    machine::{Device, Machine, PciAddress},
    status::Status,
};

impl Library {
    /// A handle for the first GPU that `wanted` accepts, given its index too.
    ///
    /// # Errors
    /// `otherwise` if it accepts none, that GPU's own error, and those of [`Library::machine`].
    pub fn find(&self, otherwise: Status, wanted: impl Fn(usize, &Device) -> bool) -> Result<usize, Status> {
        let machine = self.machine()?;
        let found = machine.devices.iter().enumerate().find(|(index, device)| wanted(*index, device));
        let (_, device) = found.ok_or(otherwise)?;
        device.answers()?;
        Ok(self.handles().of(&device.pci_address))
    }

    /// A handle for the GPU at this PCI address, however the address is written.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] if that is no address, [`Status::NotFound`], and those of [`Library::machine`].
    pub fn find_at(&self, address: &str) -> Result<usize, Status> {
        let address = PciAddress::parse(address).ok_or(Status::InvalidArgument)?;
        self.find(Status::NotFound, |_, device| PciAddress::parse(&device.pci_address) == Some(address))
    }

    /// The GPU behind a handle, and its index now.
    ///
    /// # Errors
    /// [`Status::InvalidArgument`] for no handle of ours, [`Status::GpuIsLost`] if the file lists the GPU no longer, the
    /// GPU's own error, and those of [`Library::machine`].
    pub fn device(&self, handle: usize) -> Result<(usize, Device), Status> {
        let (mut machine, index) = self.place(handle)?;
        Ok((index, machine.devices.swap_remove(index)))
    }

    /// The GPUs, and the place of the one behind a handle among them.
    ///
    /// # Errors
    /// Those of [`Library::device`].
    pub fn place(&self, handle: usize) -> Result<(Machine, usize), Status> {
        let machine = self.machine()?;
        let index = self.place_in(&machine, handle)?;
        Ok((machine, index))
    }

    /// The place of the GPU behind a handle among these.
    ///
    /// # Errors
    /// As [`Library::device`].
    pub fn place_in(&self, machine: &Machine, handle: usize) -> Result<usize, Status> {
        let address = self.handles().address(handle).ok_or(Status::InvalidArgument)?;
        let mut devices = machine.devices.iter().enumerate();
        let (index, device) = devices.find(|(_, device)| device.pci_address == address).ok_or(Status::GpuIsLost)?;
        device.answers()?;
        Ok(index)
    }
}
