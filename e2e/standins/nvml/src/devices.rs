//! Finding GPUs, by their properties and by their handles.

use std::sync::Arc;

use crate::{
    library::Library,
    machine::{Device, Machine, PciAddress},
    status::Status,
};

impl Library {
    /// Returns a handle for the first GPU that `wanted` accepts. `wanted` gets the index and the GPU.
    pub fn find(&self, otherwise: Status, wanted: impl Fn(usize, &Device) -> bool) -> Result<usize, Status> {
        let machine = self.machine()?;
        let found = machine.devices.iter().enumerate().find(|(index, device)| wanted(*index, device));
        let (_, device) = found.ok_or(otherwise)?;
        device.answers()?;
        Ok(self.handles().of(&device.pci_address))
    }

    /// Returns a handle for the GPU at this PCI address, however the address is written.
    pub fn find_at(&self, address: &str) -> Result<usize, Status> {
        let address = PciAddress::parse(address).ok_or(Status::InvalidArgument)?;
        self.find(Status::NotFound, |_, device| PciAddress::parse(&device.pci_address) == Some(address))
    }

    /// Returns the GPU with this handle, and its current index.
    pub fn device(&self, handle: usize) -> Result<(usize, Device), Status> {
        let (machine, index) = self.place(handle)?;
        Ok((index, machine.devices[index].clone()))
    }

    /// Returns all GPUs, and the index of the one with this handle.
    pub fn place(&self, handle: usize) -> Result<(Arc<Machine>, usize), Status> {
        let machine = self.machine()?;
        let index = self.place_in(&machine, handle)?;
        Ok((machine, index))
    }

    /// Returns the index in `machine` of the GPU with this handle.
    pub fn place_in(&self, machine: &Machine, handle: usize) -> Result<usize, Status> {
        let address = self.handles().address(handle).ok_or(Status::InvalidArgument)?;
        let mut devices = machine.devices.iter().enumerate();
        let (index, device) = devices.find(|(_, device)| device.pci_address == address).ok_or(Status::GpuIsLost)?;
        device.answers()?;
        Ok(index)
    }
}
