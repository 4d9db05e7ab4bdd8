//! The loop of `nvml-probe detect`: finds out whether its node has an NVIDIA GPU. It needs neither privileges nor a driver, so it can run
//! on every node, unlike the agent.

use std::time::{Duration, Instant};

use gpu_host::{
    observe::pci::{self, PciError},
    root::HostRoot,
};
use tokio::time::sleep;

use crate::{
    error_log::ErrorLog,
    report::gpu_node::{Announcer, Created, PublishError},
};

/// A look at the node has failed. What cannot be read is not gone.
#[derive(Debug, thiserror::Error)]
enum LookError {
    #[error("cannot read the PCI bus")]
    Bus(#[from] PciError),
    #[error("cannot create the GpuNode")]
    Announce(#[from] PublishError),
}

#[derive(Debug)]
pub struct Detector {
    /// The file system that contains `/sys/bus/pci`.
    pub host: HostRoot,
    pub interval: Duration,
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
        let mut errors = ErrorLog::new(self.interval, self.interval);
        loop {
            self.look_and_log(&mut errors).await;
            sleep(self.interval).await;
        }
    }

    async fn look_and_log(&mut self, errors: &mut ErrorLog) {
        match self.look().await {
            // While the announcer waits before its next attempt, its last error persists.
            Ok(()) if self.announcer.has_failed() => {}
            Ok(()) => errors.clear(),
            Err(error) => {
                errors.record("cannot detect GPUs", &error);
            }
        }
    }

    async fn look(&mut self) -> Result<(), LookError> {
        let gpus = pci::gpus(&self.host)?;
        let announced = self.announcer.announce(!gpus.is_empty(), Instant::now()).await?;
        if announced == Some(Created::New) {
            tracing::info!(gpus = gpus.len(), "created the GpuNode");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use test_api_server::Api;
    use test_support::host::Host;

    use super::*;

    /// Returns the detector of a node whose requests are rejected.
    fn detector(host: &Host) -> Detector {
        let announcer = Announcer::new(Api::new().forbid("gpunodes").client(), "n1");
        Detector { host: host.root(), interval: Duration::from_secs(10), announcer }
    }

    fn log() -> ErrorLog {
        ErrorLog::new(Duration::ZERO, Duration::ZERO)
    }

    #[tokio::test]
    async fn an_error_that_returns_after_a_success_is_logged_again() {
        let (host, mut errors) = (Host::new(), log());
        let mut detector = detector(&host);
        for _ in 0..2 {
            let _ = fs::remove_dir_all(host.path("/sys/bus"));
            detector.look_and_log(&mut errors).await;
            assert!(errors.last.starts_with("cannot read the PCI bus"), "{}", errors.last);
            fs::create_dir_all(host.path("/sys/bus/pci/devices")).unwrap();
            detector.look_and_log(&mut errors).await;
            assert_eq!(errors.last, "", "a success");
        }
    }

    #[tokio::test]
    async fn a_pause_between_two_attempts_is_no_success() {
        let (host, mut errors) = (Host::new(), log());
        host.gpu("0000:01:00.0", "0x2330");
        let mut detector = detector(&host);
        for _ in 0..2 {
            detector.look_and_log(&mut errors).await;
            assert!(errors.last.starts_with("cannot create the GpuNode"), "{}", errors.last);
        }
    }
}
