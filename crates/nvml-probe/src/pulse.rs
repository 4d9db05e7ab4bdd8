//! The agent's heartbeat: whether its loop makes progress, and whether its reports are written. Time is an argument.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Failures shorter than this are tolerated, because they may be over at the next attempt.
const TOLERANCE: Duration = Duration::from_mins(1);

/// The agent's progress, shared with the HTTP endpoints.
#[derive(Debug)]
pub struct Pulse {
    patience: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// When the first look started; afterwards, when the last look ended.
    beat: Option<Instant>,
    /// Whether a look has succeeded.
    looked: bool,
    /// The current failure, and since when.
    trouble: Option<(Instant, String)>,
}

impl Pulse {
    /// Creates the heartbeat of an agent that counts as dead once no look has ended for longer than `patience`.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { patience, state: Mutex::default() }
    }

    /// Records the start of a look.
    pub fn begins(&self, now: Instant) {
        self.state().beat.get_or_insert(now);
    }

    /// Records a successful look.
    pub fn looked(&self, now: Instant) {
        let mut state = self.state();
        state.beat = Some(now);
        state.looked = true;
    }

    /// Records a failed look, or a report that could not be written.
    pub fn failed(&self, why: &str, now: Instant) {
        let mut state = self.state();
        state.beat = Some(now);
        let since = state.trouble.as_ref().map_or(now, |(since, _)| *since);
        state.trouble = Some((since, why.to_owned()));
    }

    /// Records that the GpuNode has the report.
    pub fn reported(&self) {
        self.state().trouble = None;
    }

    /// Returns whether the agent makes progress. An agent that waits for the API server does: a restart would not help.
    ///
    /// # Errors
    /// The reason, if it does not.
    pub fn alive(&self, now: Instant) -> Result<(), String> {
        let silence = self.state().beat.map_or(Duration::ZERO, |beat| now.saturating_duration_since(beat));
        if silence > self.patience {
            return Err(format!("no look at the node has ended for {} s", silence.as_secs()));
        }
        Ok(())
    }

    /// Returns whether the GpuNode has what the agent sees.
    ///
    /// # Errors
    /// The reason, if it does not.
    pub fn ready(&self, now: Instant) -> Result<(), String> {
        let state = self.state();
        if state.beat.is_none() {
            return Err(
                "this node's GpuNode has not been read yet; if the API server rejects the request, the log shows why"
                    .to_owned(),
            );
        }
        match &state.trouble {
            Some((since, why)) => {
                let lasted = now.saturating_duration_since(*since);
                let tolerated = state.looked && lasted <= TOLERANCE;
                if tolerated { Ok(()) } else { Err(format!("{why} (for {} s)", lasted.as_secs())) }
            }
            None if state.looked => Ok(()),
            None => Err("the first look at the node has not ended yet".to_owned()),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(100);

    fn after(begin: Instant, seconds: u64) -> Instant {
        begin + Duration::from_secs(seconds)
    }

    #[test]
    fn an_agent_waiting_for_its_gpunode_is_alive_and_not_ready() {
        let (pulse, begin) = (Pulse::new(PATIENCE), Instant::now());
        assert_eq!(pulse.alive(after(begin, 100_000)), Ok(()));
        assert!(pulse.ready(begin).unwrap_err().contains("GpuNode"));
    }

    #[test]
    fn an_agent_is_ready_after_its_first_look() {
        let (pulse, begin) = (Pulse::new(PATIENCE), Instant::now());
        pulse.begins(begin);
        assert!(pulse.ready(begin).unwrap_err().contains("first look"));
        pulse.looked(begin);
        assert_eq!(pulse.ready(after(begin, 10)), Ok(()));
    }

    #[test]
    fn an_agent_whose_looks_do_not_end_is_not_alive() {
        let (pulse, begin) = (Pulse::new(PATIENCE), Instant::now());
        pulse.begins(begin);
        // A later start is no sign of life: cancelled looks have not ended.
        pulse.begins(after(begin, 90));
        assert_eq!(pulse.alive(after(begin, 100)), Ok(()));
        assert_eq!(pulse.alive(after(begin, 101)), Err("no look at the node has ended for 101 s".to_owned()));
        pulse.looked(after(begin, 101));
        assert_eq!(pulse.alive(after(begin, 201)), Ok(()));
    }

    #[test]
    fn an_agent_that_cannot_write_its_report_becomes_unready_after_a_minute() {
        let (pulse, begin) = (Pulse::new(PATIENCE), Instant::now());
        pulse.begins(begin);
        for second in [0, 30, 60] {
            pulse.looked(after(begin, second));
            pulse.failed("cannot write the report: refused", after(begin, second));
        }
        assert_eq!(pulse.ready(after(begin, 60)), Ok(()));
        assert_eq!(pulse.ready(after(begin, 61)), Err("cannot write the report: refused (for 61 s)".to_owned()));
        assert_eq!(pulse.alive(after(begin, 61)), Ok(()));
        pulse.reported();
        assert_eq!(pulse.ready(after(begin, 61)), Ok(()));
    }

    #[test]
    fn a_host_that_could_never_be_read_is_reported_at_once() {
        let (pulse, begin) = (Pulse::new(PATIENCE), Instant::now());
        pulse.begins(begin);
        pulse.failed("cannot read the host: no sysfs", begin);
        assert!(pulse.ready(begin).unwrap_err().contains("no sysfs"));
    }
}
