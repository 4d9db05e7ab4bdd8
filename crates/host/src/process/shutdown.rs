//! Waits for the request to terminate.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The exit code that a shell reports for a process ended by SIGTERM. A gate that is terminated is not open and must
/// not exit 0.
pub const EXIT_TERMINATED: u8 = 128 + 15;

/// Waits for SIGTERM or SIGINT. A container's first process receives neither without a handler, so this is created
/// before anything else.
#[derive(Debug)]
pub struct Shutdown {
    terminate: Signal,
    interrupt: Signal,
}

impl Shutdown {
    /// Registers the signal handlers.
    pub fn listen() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Returns when the process is asked to terminate.
    pub async fn requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Runs an asynchronous command on the calling thread, which must be the first of the process: the NVML child is tied to the
/// thread that starts it, not to the process, so that thread must live as long as the process does.
pub fn run_on_this_thread<T, E: From<io::Error>>(
    command: impl AsyncFnOnce(&mut Shutdown) -> Result<T, E>,
) -> Result<T, E> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { command(&mut Shutdown::listen()?).await })
}
