//! Handles, which are numbers in pointers. The handle of an instance is the handle of its GPU with the instance's id in
//! the higher bits. The handle of its compute instance, which is also that of the MIG device, has one more bit set.

use std::sync::{Mutex, MutexGuard, PoisonError};

const NUMBER: u32 = 16;
const COMPUTE: usize = 1 << 40;

/// Returns the handle of the GPU to which a handle belongs.
pub(crate) fn gpu(handle: usize) -> usize {
    handle & ((1 << NUMBER) - 1)
}

pub(crate) fn instance(gpu: usize, id: u32) -> usize {
    gpu | (id as usize) << NUMBER
}

/// Returns the id of the instance that a handle identifies; 0 for the handle of a GPU.
pub(crate) fn instance_id(handle: usize) -> usize {
    (handle & !COMPUTE) >> NUMBER
}

pub(crate) fn compute(instance: usize) -> usize {
    instance | COMPUTE
}

/// Returns whether a handle identifies a MIG device, whose handle is that of its compute instance.
pub(crate) fn is_mig_device(handle: usize) -> bool {
    handle & COMPUTE != 0
}

/// The handles of GPUs: each is an index in a list of PCI addresses, and so never dangles.
#[derive(Debug, Default)]
pub(crate) struct Handles(Mutex<Vec<String>>);

impl Handles {
    /// Returns the handle of the GPU at this address, which is the same as long as the library is loaded.
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
