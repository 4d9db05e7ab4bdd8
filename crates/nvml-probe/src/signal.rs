//! The request to end.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// SIGTERM or SIGINT, whichever comes first. A container's first process gets neither unless it has asked for it,
/// so this is made before anything else is done.
#[derive(Debug)]
pub struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the handlers cannot be registered.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns when the process is asked to end.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
