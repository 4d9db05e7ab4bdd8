//! The loop of `nvml-probe detect`: finds out whether its node has an NVIDIA GPU. It needs neither privileges nor a driver, so it can run
//! on every node, unlike the agent.

use std::time::{Duration, Instant};

use gpu_host::{
    observe::pci::{self, PciError},
    process::error_chain,
    root::HostRoot,
};
use tokio::time::sleep;

use crate::report::{announce::Announcer, create::Created, publish::PublishError};

/// A look at the node has failed. What cannot be read is not gone.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("cannot read the PCI bus")]
    Bus(#[from] PciError),
    #[error("cannot create the GpuNode")]
    Announce(#[from] PublishError),
}

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
            if let Err(error) = self.look().await {
                let error = error_chain(&error);
                if error != logged {
                    tracing::warn!("{error}; retrying");
                }
                logged = error;
            }
            sleep(self.interval).await;
        }
    }

    /// Looks at the bus once, and announces the first GPU.
    async fn look(&mut self) -> Result<(), LookError> {
        let gpus = pci::gpus(&self.host)?;
        let announced = self.announcer.announce(!gpus.is_empty(), Instant::now()).await?;
        if announced == Some(Created::New) {
            tracing::info!(gpus = gpus.len(), "created the GpuNode");
        }
        Ok(())
    }
}
