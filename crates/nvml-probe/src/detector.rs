//! The loop of `nvml-probe detect`: finds out whether its node has an NVIDIA GPU. It needs neither privileges nor a driver, so it can run
//! on every node, unlike the agent.

use std::time::{Duration, Instant};

use gpu_host::{observe::pci, process::error_chain, root::HostRoot};
use tokio::time::sleep;

use crate::report::{announce::Announcer, create::Created};

/// The detector of one node.
#[derive(Debug)]
pub struct Detector {
    /// The file system that contains `/sys/bus/pci`.
    pub host: HostRoot,
    /// Pause between two looks at the PCI bus.
    pub interval: Duration,
    /// What creates the GpuNode.
    pub announcer: Announcer,
}

impl Detector {
    /// Runs until `shutdown` completes.
    pub async fn run(mut self, shutdown: impl Future<Output = ()>) {
        tokio::select! {
            () = shutdown => {}
            () = self.watch() => {}
        }
    }

    async fn watch(&mut self) {
        // An error that repeats is logged once.
        let mut logged = String::new();
        loop {
            let failed = self.look().await.err().unwrap_or_default();
            if !failed.is_empty() && failed != logged {
                tracing::warn!("{failed}; retrying");
            }
            logged = failed;
            sleep(self.interval).await;
        }
    }

    /// Looks at the bus once. Returns the message of an error: what cannot be read is not gone.
    async fn look(&mut self) -> Result<(), String> {
        let gpus =
            pci::gpus(&self.host).map_err(|error| format!("cannot read the PCI bus: {}", error_chain(&error)))?;
        let announced = self.announcer.announce(!gpus.is_empty(), Instant::now()).await;
        let announced = announced.map_err(|error| format!("cannot create the GpuNode: {}", error_chain(&error)))?;
        if announced == Some(Created::New) {
            tracing::info!(gpus = gpus.len(), "created the GpuNode");
        }
        Ok(())
    }
}
