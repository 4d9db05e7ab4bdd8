//! The responses of the operator at `/livez`, `/readyz` and `/metrics`.

use std::{fmt, sync::Arc};

use tokio::time::Instant;

use crate::{metrics::Metrics, progress::Progress, watch::Mirrors};

/// The state that the endpoints report.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The mirrors: the operator is ready once all have been listed.
    pub mirrors: Arc<Mirrors>,
    pub metrics: Arc<Metrics>,
    /// The progress of the reconcile loop.
    pub progress: Arc<Progress>,
}

impl gpu_operator_common::admin::Admin for Admin {
    fn alive(&self) -> Result<(), String> {
        self.progress.alive(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        let missing = self.mirrors.missing();
        if missing.is_empty() {
            return Ok(());
        }
        Err(format!("not listed yet: {}; check the log for failed watches", missing.join(", ")))
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.metrics.text()
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_common::admin::Admin as _;

    use super::*;

    #[test]
    fn before_the_first_lists_the_operator_names_the_missing_kinds() {
        let admin = Admin { mirrors: Arc::default(), metrics: Arc::default(), progress: Arc::default() };
        assert_eq!(admin.alive(), Ok(()));
        let missing = admin.ready().expect_err("nothing has been listed");
        assert!(missing.contains("ClusterGpuPolicy, Node, GpuNode"), "{missing}");
        assert!(admin.metrics().expect("metrics").contains("gpu_operator_passes_total 0"));
    }
}
