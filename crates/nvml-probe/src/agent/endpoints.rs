//! The state behind the probe's HTTP endpoints: `/livez`, `/readyz` (503 with the reason) and `/metrics`.
//!
//! The endpoints are served by the agent's own thread, so an agent that hangs fails its probes by not answering.

use std::{fmt, sync::Arc, time::Instant};

use super::{heartbeat::Heartbeat, metrics::Metrics};

/// The state that the endpoints expose.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// The agent's progress.
    pub heartbeat: Arc<Heartbeat>,
    pub metrics: Arc<Metrics>,
}

impl gpu_operator_common::admin::Admin for Telemetry {
    fn alive(&self) -> Result<(), String> {
        self.heartbeat.alive(Instant::now())
    }

    fn ready(&self) -> Result<(), String> {
        self.heartbeat.ready(Instant::now())
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

    fn telemetry() -> Telemetry {
        Telemetry { heartbeat: Arc::new(Heartbeat::new(Duration::ZERO)), metrics: Arc::new(Metrics::new("n1")) }
    }

    #[test]
    fn before_the_first_look_readiness_fails_and_gives_the_reason() {
        let telemetry = telemetry();
        let reason = telemetry.ready().unwrap_err();
        assert!(reason.contains("GpuNode"), "{reason}");
        assert_eq!(telemetry.alive(), Ok(()));
        let text = telemetry.metrics().unwrap();
        assert!(text.contains("nvml_probe_looks_total{node=\"n1\",result=\"Done\"} 0"), "{text}");
    }

    #[test]
    fn an_agent_that_is_stuck_is_not_alive() {
        let telemetry = telemetry();
        // The timeout is zero, so it has passed as soon as the clock advances.
        let begin = Instant::now();
        telemetry.heartbeat.look_started(begin);
        while Instant::now() == begin {
            std::hint::spin_loop();
        }
        let reason = telemetry.alive().unwrap_err();
        assert!(reason.contains("no look"), "{reason}");
    }
}
