//! Interrupts, such as Ctrl-C: the running command stops and cleans up.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};
use tokio::signal::unix::{SignalKind, signal};

/// Whether this process handles interrupts itself and forwards them to the commands that it runs.
static HANDLED: AtomicBool = AtomicBool::new(false);
static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static CLEANING_UP: AtomicBool = AtomicBool::new(false);

/// Makes SIGINT, SIGTERM and SIGHUP request a stop with clean-up instead of ending this process at once.
pub fn catch_interrupts() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    // Registered before this function returns, so that no signal is lost in between.
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    drop(guard);
    HANDLED.store(true, Ordering::SeqCst);
    std::thread::spawn(move || {
        runtime.block_on(async {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                INTERRUPTED.store(true, Ordering::SeqCst);
                errln!("\n  ! interrupted: cleaning up, this takes a few seconds");
            }
        });
    });
    Ok(())
}

/// Returns whether [`catch_interrupts`] was called.
pub fn are_caught() -> bool {
    HANDLED.load(Ordering::SeqCst)
}

/// Returns whether a stop was requested.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst) && !CLEANING_UP.load(Ordering::SeqCst)
}

/// Makes [`interrupted`] return false from now on, so that the clean-up runs to its end.
pub fn begin_cleanup() {
    CLEANING_UP.store(true, Ordering::SeqCst);
}

/// Sleeps for `time`, and fails early when a stop is requested.
pub fn pause(time: Duration) -> Result<()> {
    let end = Instant::now() + time;
    loop {
        if interrupted() {
            bail!("interrupted");
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        sleep(left.min(Duration::from_millis(50)));
    }
}
