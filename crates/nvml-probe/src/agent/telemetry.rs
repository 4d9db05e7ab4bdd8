//! The state behind the probe's HTTP endpoints: `/livez`, `/readyz` (503 with the reason) and `/metrics`; the agent's heartbeat;
//! and the metrics of the containers that have GPUs.
//!
//! The endpoints are served by the agent's own thread, so an agent that hangs fails its probes by not answering.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use gpu_host::root::HostRoot;
use tokio::time::sleep;

use crate::{
    agent::{facts, metrics::Metrics},
    error_log::ErrorLog,
};

#[derive(Clone, Debug)]
pub struct Telemetry {
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

/// Failures shorter than this are tolerated, because they may be over at the next attempt.
const TOLERANCE: Duration = Duration::from_mins(1);

/// The agent's progress, shared with the HTTP endpoints.
#[derive(Debug)]
pub struct Heartbeat {
    stall_timeout: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the first look started; afterwards, when the last look ended.
    last_beat: Option<Instant>,
    has_succeeded: bool,
    /// The current failure, and since when.
    trouble: Option<(Instant, String)>,
}

impl Heartbeat {
    /// The agent counts as dead once no look has ended for longer than `stall_timeout`.
    pub fn new(stall_timeout: Duration) -> Self {
        Self { stall_timeout, state: Mutex::default() }
    }

    pub fn look_started(&self, now: Instant) {
        self.state().last_beat.get_or_insert(now);
    }

    pub fn look_succeeded(&self, now: Instant) {
        let mut state = self.state();
        state.last_beat = Some(now);
        state.has_succeeded = true;
    }

    /// Records a failed look, or a report that could not be written.
    pub fn failed(&self, why: &str, now: Instant) {
        let mut state = self.state();
        state.last_beat = Some(now);
        let since = state.trouble.as_ref().map_or(now, |(since, _)| *since);
        state.trouble = Some((since, why.to_owned()));
    }

    pub fn reported(&self) {
        self.state().trouble = None;
    }

    /// Returns whether the agent makes progress. Waiting for the API server counts as progress, because a restart would
    /// not help.
    pub fn alive(&self, now: Instant) -> Result<(), String> {
        let silence =
            self.state().last_beat.map_or(Duration::ZERO, |last_beat| now.saturating_duration_since(last_beat));
        if silence > self.stall_timeout {
            return Err(format!("no look at the node has ended for {} s", silence.as_secs()));
        }
        Ok(())
    }

    pub fn ready(&self, now: Instant) -> Result<(), String> {
        let state = self.state();
        if state.last_beat.is_none() {
            return Err(
                "this node's GpuNode has not been read yet; if the API server rejects the request, the log shows why"
                    .to_owned(),
            );
        }
        match &state.trouble {
            Some((since, why)) => {
                let lasted = now.saturating_duration_since(*since);
                let tolerated = state.has_succeeded && lasted <= TOLERANCE;
                if tolerated { Ok(()) } else { Err(format!("{why} (for {} s)", lasted.as_secs())) }
            }
            None if state.has_succeeded => Ok(()),
            None => Err("the first look at the node has not ended yet".to_owned()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pause between two requests to kubelet: the age that the series may have at a scrape.
const KUBELET_PAUSE: Duration = Duration::from_secs(5);

/// Shows the containers that have GPUs in the metrics, until it is cancelled. None is shown while kubelet does not answer.
pub async fn follow_pods(host: HostRoot, kubelet_root: Option<String>, metrics: Arc<Metrics>) {
    let mut errors = ErrorLog::new(KUBELET_PAUSE, KUBELET_PAUSE);
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
        sleep(KUBELET_PAUSE).await;
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

    const STALL_TIMEOUT: Duration = Duration::from_secs(100);

    fn after(begin: Instant, seconds: u64) -> Instant {
        begin + Duration::from_secs(seconds)
    }

    #[test]
    fn an_agent_waiting_for_its_gpunode_is_alive_and_not_ready() {
        let (heartbeat, begin) = (Heartbeat::new(STALL_TIMEOUT), Instant::now());
        assert_eq!(heartbeat.alive(after(begin, 100_000)), Ok(()));
        assert!(heartbeat.ready(begin).unwrap_err().contains("GpuNode"));
    }

    #[test]
    fn an_agent_is_ready_after_its_first_look() {
        let (heartbeat, begin) = (Heartbeat::new(STALL_TIMEOUT), Instant::now());
        heartbeat.look_started(begin);
        assert!(heartbeat.ready(begin).unwrap_err().contains("first look"));
        heartbeat.look_succeeded(begin);
        assert_eq!(heartbeat.ready(after(begin, 10)), Ok(()));
    }

    #[test]
    fn an_agent_whose_looks_do_not_end_is_not_alive() {
        let (heartbeat, begin) = (Heartbeat::new(STALL_TIMEOUT), Instant::now());
        heartbeat.look_started(begin);
        // A later start does not count as progress: a cancelled look has not ended.
        heartbeat.look_started(after(begin, 90));
        assert_eq!(heartbeat.alive(after(begin, 100)), Ok(()));
        assert_eq!(heartbeat.alive(after(begin, 101)), Err("no look at the node has ended for 101 s".to_owned()));
        heartbeat.look_succeeded(after(begin, 101));
        assert_eq!(heartbeat.alive(after(begin, 201)), Ok(()));
    }

    #[test]
    fn an_agent_without_a_written_report_is_unready_after_a_minute() {
        let (heartbeat, begin) = (Heartbeat::new(STALL_TIMEOUT), Instant::now());
        heartbeat.look_started(begin);
        for second in [0, 30, 60] {
            heartbeat.look_succeeded(after(begin, second));
            heartbeat.failed("cannot write the report: refused", after(begin, second));
        }
        assert_eq!(heartbeat.ready(after(begin, 60)), Ok(()));
        assert_eq!(heartbeat.ready(after(begin, 61)), Err("cannot write the report: refused (for 61 s)".to_owned()));
        assert_eq!(heartbeat.alive(after(begin, 61)), Ok(()));
        heartbeat.reported();
        assert_eq!(heartbeat.ready(after(begin, 61)), Ok(()));
    }
}
