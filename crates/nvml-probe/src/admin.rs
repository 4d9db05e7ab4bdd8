//! What the probe answers at `/livez`, `/readyz` and `/metrics`.
//!
//! It is served by the thread that the agent works on: one that hangs answers nobody, which says as much.

use std::{fmt, sync::Arc, time::Instant};

use crate::{metrics::Metrics, pulse::Pulse};

/// The state that the endpoints report.
#[derive(Clone, Debug)]
pub struct Admin {
    /// Whether the agent's loop goes on, and whether its report is written.
    pub pulse: Arc<Pulse>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

impl gpu_operator_common::admin::Admin for Admin {
    fn alive(&self) -> Result<(), String> {
        self.pulse.alive(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.pulse.ready(Instant::now())
    }

    fn metrics(&self) -> Result<String, fmt::Error> {
        self.metrics.text()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gpu_operator_common::admin::Admin as _;

    use super::*;

    fn admin() -> Admin {
        Admin { pulse: Arc::new(Pulse::new(Duration::ZERO)), metrics: Arc::new(Metrics::new("n1")) }
    }

    #[test]
    fn before_the_first_look_the_probe_is_alive_and_says_why_it_is_not_ready() {
        let admin = admin();
        let reason = admin.ready().unwrap_err();
        assert!(reason.contains("GpuNode"), "{reason}");
        assert_eq!(admin.alive(), Ok(()));
        let text = admin.metrics().unwrap();
        assert!(text.contains("nvml_probe_looks_total{node=\"n1\",result=\"Done\"} 0"), "{text}");
    }

    #[test]
    fn an_agent_that_is_stuck_is_not_alive() {
        let admin = admin();
        // No patience is left as soon as the clock has moved.
        let begin = Instant::now();
        admin.pulse.begins(begin);
        while Instant::now() == begin {
            std::hint::spin_loop();
        }
        let reason = admin.alive().unwrap_err();
        assert!(reason.contains("no look"), "{reason}");
    }
}
