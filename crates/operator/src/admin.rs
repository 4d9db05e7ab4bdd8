//! The responses of the operator at `/livez`, `/readyz` and `/metrics`, and whether the reconcile loop makes progress.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::{metrics::Metrics, watch::Mirrors};

#[derive(Clone, Debug)]
pub struct Admin {
    /// The mirrors: the operator is ready once all have been listed, unless a CRD is outdated.
    pub mirrors: Arc<Mirrors>,
    pub metrics: Arc<Metrics>,
    pub progress: Arc<Progress>,
}

impl gpu_operator_common::admin::Admin for Admin {
    fn alive(&self) -> Result<(), String> {
        self.progress.alive(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        if let Some(mismatch) = self.mirrors.outdated_crd() {
            return Err(format!("{mismatch}: {}", mismatch.remedy()));
        }
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

/// The time after which a pass counts as stuck. Every request in it has a deadline, so that a pass ends within a minute or two even
/// if the API server answers nothing.
const STUCK: Duration = Duration::from_mins(5);

/// The start of the pass that is in progress.
#[derive(Debug, Default)]
pub struct Progress(Mutex<Option<Instant>>);

impl Progress {
    /// Records that a pass begins.
    pub fn began(&self, now: Instant) {
        self.set(Some(now));
    }

    /// Records that the pass has ended.
    pub fn ended(&self) {
        self.set(None);
    }

    fn set(&self, began: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = began;
    }

    /// Returns whether passes end. A loop that waits for a change is alive.
    pub fn alive(&self, now: Instant) -> Result<(), String> {
        let began = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let lasts = began.map_or(Duration::ZERO, |began| now.saturating_duration_since(began));
        if lasts > STUCK {
            return Err(format!("a reconcile pass has not ended for {} s", lasts.as_secs()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_common::admin::Admin as _;
    use gpu_operator_crd::{SchemaMismatch, schema_revision::crd_names};

    use super::*;

    #[test]
    fn before_the_first_lists_the_operator_names_the_missing_kinds() {
        let admin = Admin { mirrors: Arc::default(), metrics: Arc::default(), progress: Arc::default() };
        assert_eq!(admin.alive(), Ok(()));
        let missing = admin.ready().expect_err("nothing has been listed");
        assert!(missing.contains("ClusterGpuPolicy, Node, GpuNode"), "{missing}");
        assert!(admin.metrics().expect("metrics").contains("gpu_operator_passes_total 0"));
    }

    #[test]
    fn an_operator_is_not_ready_while_a_crd_is_outdated() {
        let mirrors = Arc::<Mirrors>::default();
        let [policies, gpu_nodes] = crd_names();
        let outdated = SchemaMismatch { crd: gpu_nodes.to_owned(), revision: Some(1) };
        assert!(mirrors.learn_crd(policies, None) && !mirrors.may_lead(), "one has not answered");
        assert!(mirrors.learn_crd(gpu_nodes, Some(outdated.clone())) && !mirrors.may_lead());
        let admin = Admin { mirrors: Arc::clone(&mirrors), metrics: Arc::default(), progress: Arc::default() };
        let why = admin.ready().expect_err("an outdated CRD");
        assert!(why.contains(gpu_nodes) && why.contains("kubectl apply --server-side -f config/crd"), "{why}");
        assert!(!mirrors.learn_crd(gpu_nodes, Some(outdated)), "nothing changed");
        assert!(mirrors.learn_crd(gpu_nodes, None) && mirrors.may_lead());
    }

    #[test]
    fn a_loop_is_alive_while_it_waits_not_while_a_pass_hangs() {
        let (progress, now) = (Progress::default(), Instant::now());
        let later = |seconds| now + Duration::from_secs(seconds);
        assert_eq!(progress.alive(later(10_000)), Ok(()));
        progress.began(now);
        assert_eq!(progress.alive(later(300)), Ok(()));
        assert_eq!(progress.alive(later(301)), Err("a reconcile pass has not ended for 301 s".to_owned()));
        progress.ended();
        assert_eq!(progress.alive(later(301)), Ok(()));
    }
}
