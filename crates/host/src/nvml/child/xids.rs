//! Listens for XIDs reported by NVML.
//!
//! While NVML is not queried, it keeps only the last XID. A thread therefore waits for them all the time and counts them:
//! however many occur, one count is kept for each GPU and number.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, Scope},
    time::Duration,
};

use nvml_wrapper::{Device, EventSet, Nvml, bitmasks::event::EventTypes, enums::event::XidError, error::NvmlError};

use crate::{nvml::protocol::NvmlXid, observe::pci};

/// The longest time that a wait takes, and therefore the end of the thread, during which the driver is held.
const WAIT: Duration = Duration::from_millis(200);

/// NVML's number for an unknown XID.
const UNKNOWN: u16 = 999;

/// The most combinations of GPU and number that are counted; there are some 150 numbers.
const MAX_KEPT: usize = 1024;

type Counts = Mutex<BTreeMap<(String, u16), u64>>;

/// Listens for XIDs until dropped.
pub struct XidListener<'scope, 'nvml> {
    scope: &'scope Scope<'scope, 'nvml>,
    nvml: &'nvml Nvml,
    counts: Arc<Counts>,
    /// The GPUs that are listened to, and the flag that stops it.
    listening: Option<(Vec<String>, Arc<AtomicBool>)>,
}

impl<'scope, 'nvml> XidListener<'scope, 'nvml> {
    pub fn new(scope: &'scope Scope<'scope, 'nvml>, nvml: &'nvml Nvml) -> Self {
        Self { scope, nvml, counts: Arc::default(), listening: None }
    }

    /// Listens to these GPUs from now on, as far as they report XIDs.
    pub fn listen_to(&mut self, gpus: &[(String, Device<'nvml>)]) {
        let addresses: Vec<String> = gpus.iter().map(|(address, _)| address.clone()).collect();
        if self.listening.as_ref().is_some_and(|(known, _)| *known == addresses) {
            return;
        }
        self.end();
        let stop = Arc::new(AtomicBool::new(false));
        self.listening = Some((addresses, Arc::clone(&stop)));
        let Some(set) = register(self.nvml, gpus) else { return };
        let counts = Arc::clone(&self.counts);
        self.scope.spawn(move || listen(&set, &counts, &stop));
    }

    pub fn take(&mut self) -> Vec<NvmlXid> {
        let counts = std::mem::take(&mut *self.counts.lock().unwrap_or_else(PoisonError::into_inner));
        counts.into_iter().map(|((pci_address, xid), count)| NvmlXid { pci_address, xid, count }).collect()
    }

    fn end(&mut self) {
        if let Some((_, stop)) = self.listening.take() {
            stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for XidListener<'_, '_> {
    fn drop(&mut self) {
        self.end();
    }
}

/// Registers those GPUs that support it. One that does not would invalidate the set for the others.
fn register<'nvml>(nvml: &'nvml Nvml, gpus: &[(String, Device<'nvml>)]) -> Option<EventSet<'nvml>> {
    let mut able: Vec<&Device<'nvml>> = gpus
        .iter()
        .map(|(_, device)| device)
        .filter(|device| {
            device.supported_event_types().is_ok_and(|types| types.contains(EventTypes::CRITICAL_XID_ERROR))
        })
        .collect();
    while !able.is_empty() {
        match register_all(nvml, &able) {
            Ok(set) => return Some(set),
            Err(refusing) => drop(able.remove(refusing)),
        }
    }
    None
}

/// Registers all GPUs, or returns the index of the first that does not support it.
fn register_all<'nvml>(nvml: &'nvml Nvml, gpus: &[&Device<'nvml>]) -> Result<EventSet<'nvml>, usize> {
    let mut set = nvml.create_event_set().map_err(|_| 0_usize)?;
    for (place, device) in gpus.iter().enumerate() {
        set = device.register_events(EventTypes::CRITICAL_XID_ERROR, set).map_err(|_| place)?;
    }
    Ok(set)
}

fn listen(set: &EventSet<'_>, counts: &Counts, stop: &AtomicBool) {
    let wait = u32::try_from(WAIT.as_millis()).unwrap_or_default();
    while !stop.load(Ordering::Relaxed) {
        match set.wait(wait) {
            Ok(event) => {
                let Some(xid) = event.event_data else { continue };
                let xid = match xid {
                    XidError::Value(xid) => u16::try_from(xid).unwrap_or(UNKNOWN),
                    XidError::Unknown => UNKNOWN,
                };
                let Ok(info) = event.device.pci_info() else { continue };
                let address = pci::normalise(&info.bus_id).unwrap_or(info.bus_id);
                let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
                if counts.len() < MAX_KEPT || counts.contains_key(&(address.clone(), xid)) {
                    *counts.entry((address, xid)).or_default() += 1;
                }
            }
            Err(NvmlError::Timeout) => {}
            // A GPU is lost or NVML is in an inconsistent state, which its next response shows.
            Err(_) => thread::sleep(WAIT),
        }
    }
}
