//! The state of an event set.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::machine::{Device, Machine, Xid};

/// An XID event of one GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The PCI address of the GPU, as the file writes it.
    pub pci_address: String,
    pub xid: u64,
}

/// The GPUs of an event set, and the events that were already delivered.
#[derive(Debug, Default)]
pub(crate) struct EventSet {
    registered: BTreeSet<String>,
    /// Unhealthy GPUs whose event was delivered.
    delivered: BTreeSet<String>,
    /// Entries of GPUs' lists of XIDs: since when each is in the list, and how often it was delivered.
    xid_counts: BTreeMap<(String, Xid), (Instant, u64)>,
}

impl EventSet {
    /// Adds a GPU to the set. As with NVML, earlier events are not delivered.
    pub(crate) fn register(&mut self, device: &Device) {
        self.registered.insert(device.pci_address.clone());
        for xid in &device.xids {
            self.xid_counts.insert((device.pci_address.clone(), xid.clone()), (Instant::now(), 1));
        }
    }

    /// Returns the next XID that has not been delivered yet. A GPU that recovers can report again.
    pub(crate) fn next(&mut self, machine: &Machine) -> Option<Event> {
        let listed = |(address, xid): &(String, Xid)| {
            machine.devices.iter().any(|device| device.pci_address == *address && device.xids.contains(xid))
        };
        self.xid_counts.retain(|entry, _| listed(entry));
        for device in machine.devices.iter().filter(|device| self.registered.contains(&device.pci_address)) {
            let address = &device.pci_address;
            if machine.is_healthy(device) {
                self.delivered.remove(address);
            } else if self.delivered.insert(address.clone()) {
                return Some(Event { pci_address: address.clone(), xid: device.xid });
            }
            for xid in &device.xids {
                let (since, count) =
                    self.xid_counts.entry((address.clone(), xid.clone())).or_insert((Instant::now(), 0));
                if *count < xid.due(since.elapsed()) {
                    *count += 1;
                    return Some(Event { pci_address: address.clone(), xid: xid.xid });
                }
            }
        }
        None
    }
}
