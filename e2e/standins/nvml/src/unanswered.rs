//! Reports calls of functions that this library does not answer.
//!
//! A listener binds a datagram socket to `etc/standin/unanswered.sock` under the driver root. It receives one datagram
//! for each unanswered function that a process calls: the function's name, a space, and the PCI device id of the GPU
//! that it was called for, as four hexadecimal digits, or `-` for none.

use std::{
    os::unix::net::UnixDatagram,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{handle, library::Library, machine::Machine};

/// The socket's name in the stand-in's folder.
const SOCKET: &str = "unanswered.sock";

/// Reports that `function` was called, once: `reported` records that. `first` is its first argument, which is a GPU's
/// handle if the function has one. Never blocks, and ignores errors: they do not change what the caller gets.
pub(crate) fn report(library: &Library, function: &str, first: usize, reported: &AtomicBool) {
    if reported.load(Ordering::Relaxed) {
        return;
    }
    let path = library.standin().join(SOCKET);
    if !path.exists() {
        return;
    }
    let id = if function.starts_with("nvmlDevice") { device_id(library, first) } else { None };
    let line = id.map_or_else(|| format!("{function} -"), |id| format!("{function} {id:04x}"));
    let sent = UnixDatagram::unbound().and_then(|socket| {
        socket.set_nonblocking(true)?;
        socket.send_to(line.as_bytes(), path)
    });
    // Without a listener, or while it is busy, a later call tries again.
    if sent.is_ok() {
        reported.store(true, Ordering::Relaxed);
    }
}

/// Returns the PCI device id of the GPU with this handle. Faults of NVML in the file do not affect it.
fn device_id(library: &Library, handle: usize) -> Option<u32> {
    let address = library.handles().address(handle::gpu(handle))?;
    let machine: Machine = serde_json::from_str(&library.read("gpus.json").ok()?).ok()?;
    let device = machine.devices.into_iter().find(|device| device.pci_address == address)?;
    Some(device.packed_id()? >> 16)
}
