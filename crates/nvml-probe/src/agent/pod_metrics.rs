//! Keeps the metrics of the containers that have GPUs current.

use std::{sync::Arc, time::Duration};

use gpu_host::root::HostRoot;
use tokio::time::sleep;

use super::{facts, metrics::Metrics};
use crate::error_log::ErrorLog;

/// The pause between two requests to kubelet: the age that the series may have at a scrape.
const PAUSE: Duration = Duration::from_secs(5);

/// Shows the containers that have GPUs in the metrics, until it is cancelled. None is shown while kubelet does not answer.
pub async fn follow(host: HostRoot, kubelet_root: Option<String>, metrics: Arc<Metrics>) {
    let mut errors = ErrorLog::new(PAUSE, PAUSE);
    loop {
        match facts::assignments(&host, kubelet_root.as_deref()).await {
            Ok(assignments) => {
                errors.clear();
                metrics.show_pods(assignments.unwrap_or_default());
            }
            Err(error) => {
                metrics.show_pods(Vec::new());
                errors.record("cannot list the pods that have GPUs", &error);
            }
        }
        sleep(PAUSE).await;
    }
}
