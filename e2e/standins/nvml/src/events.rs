//! What an event set remembers.

use std::collections::BTreeSet;

use crate::machine::Machine;

/// An XID event of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The PCI address of the GPU, as the file writes it.
    pub pci_address: String,
    /// The XID.
    pub xid: u64,
}

/// The GPUs that somebody waits for, and what they were told already.
#[derive(Debug, Default)]
pub(crate) struct EventSet {
    registered: BTreeSet<String>,
    delivered: BTreeSet<String>,
}

impl EventSet {
    /// Adds a GPU to those that are waited for.
    pub(crate) fn register(&mut self, pci_address: &str) {
        self.registered.insert(pci_address.to_owned());
    }

    /// The next XID that has not been told yet; a GPU that recovers can report again.
    pub(crate) fn next(&mut self, machine: &Machine) -> Option<Event> {
        for device in machine.devices.iter().filter(|device| self.registered.contains(&device.pci_address)) {
            if machine.is_healthy(device) {
                self.delivered.remove(&device.pci_address);
            } else if self.delivered.insert(device.pci_address.clone()) {
                return Some(Event { pci_address: device.pci_address.clone(), xid: device.xid });
            }
        }
        None
    }
}
