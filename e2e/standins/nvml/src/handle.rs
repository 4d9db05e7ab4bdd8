//! Handles, which are numbers dressed as pointers: that of an instance is its GPU's with its own number above that, and that
//! of the instance's compute instance, which is a MIG device's too, has one more bit.

use std::sync::{Mutex, MutexGuard, PoisonError};

const NUMBER: u32 = 16;
const COMPUTE: usize = 1 << 40;

/// The GPU's own handle.
pub(crate) fn gpu(handle: usize) -> usize {
    handle & ((1 << NUMBER) - 1)
}

/// The handle of one of a GPU's instances.
pub(crate) fn instance(gpu: usize, id: u32) -> usize {
    gpu | (id as usize) << NUMBER
}

/// The number of the instance that a handle means; 0 for that of a GPU.
pub(crate) fn instance_id(handle: usize) -> usize {
    (handle & !COMPUTE) >> NUMBER
}

/// The handle of an instance's compute instance.
pub(crate) fn compute(instance: usize) -> usize {
    instance | COMPUTE
}

/// A MIG device's handle is that of its compute instance.
pub(crate) fn is_mig_device(handle: usize) -> bool {
    handle & COMPUTE != 0
}

/// The handles of GPUs: each is an index in a list of PCI addresses, and so never dangles.
#[derive(Debug, Default)]
pub(crate) struct Handles(Mutex<Vec<String>>);

impl Handles {
    /// The handle of the GPU at this address: the same one for as long as the library is loaded.
    pub(crate) fn of(&self, address: &str) -> usize {
        let mut addresses = self.addresses();
        if let Some(place) = addresses.iter().position(|known| known == address) {
            return place + 1;
        }
        addresses.push(address.to_owned());
        addresses.len()
    }

    /// Returns the address of a handle; `None` for an unknown handle.
    pub(crate) fn address(&self, handle: usize) -> Option<String> {
        handle.checked_sub(1).and_then(|place| self.addresses().get(place).cloned())
    }

    fn addresses(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
