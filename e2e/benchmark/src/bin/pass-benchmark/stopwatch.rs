//! The processor time of this thread, on which other programs of the machine have less influence than on the time of day.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result};

pub struct Stopwatch(Duration);

impl Stopwatch {
    pub fn start() -> Result<Self> {
        processor_time().map(Self)
    }

    pub fn elapsed(&self) -> Result<Duration> {
        Ok(processor_time()?.saturating_sub(self.0))
    }
}

fn processor_time() -> Result<Duration> {
    // The kernel updates its statistics when a thread yields; otherwise they may be some milliseconds old.
    thread::yield_now();
    let statistics = fs::read_to_string("/proc/thread-self/schedstat").context("no statistics of the scheduler")?;
    let nanoseconds = statistics.split_whitespace().next().context("no processor time")?;
    Ok(Duration::from_nanos(nanoseconds.parse()?))
}
