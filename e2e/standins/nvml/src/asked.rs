//! What programs ask that this library does not answer, told to whoever listens.
//!
//! A listener binds a datagram socket to `etc/standin/asked.sock` under the driver root. It gets one datagram for each
//! function that a process calls in vain: the function's name, a blank, and the PCI device id of the GPU that it was called
//! for, as four hexadecimal digits, or `-` for none.

use std::{
    os::unix::net::UnixDatagram,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{handle, library::Library, machine::Machine};

/// The socket, in the stand-in's folder.
const SOCKET: &str = "asked.sock";

/// Tells that `function` was called, once: `told` remembers it. `first` is its first argument, which is a GPU's handle where
/// the function is one of a GPU's. Never waits, and says nothing of what goes wrong: the caller gets the same answer.
pub(crate) fn tell(library: &Library, function: &str, first: usize, told: &AtomicBool) {
    if told.load(Ordering::Relaxed) {
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
    // Without a listener, or while that is busy, a later call may find one.
    if sent.is_ok() {
        told.store(true, Ordering::Relaxed);
    }
}

/// The PCI device id of the GPU behind a handle. What the file puts in the way of calls does not keep it from being told.
fn device_id(library: &Library, handle: usize) -> Option<u32> {
    let address = library.handles().address(handle::gpu(handle))?;
    let machine: Machine = serde_json::from_str(&library.read("gpus.json").ok()?).ok()?;
    let device = machine.devices.into_iter().find(|device| device.pci_address == address)?;
    Some(device.packed_id()? >> 16)
}
