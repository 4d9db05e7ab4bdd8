//! The sandbox container of every pod on the real nodes: it holds the pod's namespaces, reaps orphaned processes, and exits on
//! SIGTERM or SIGINT.

use nix::{
    sys::{
        signal::{SigSet, Signal},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};

fn main() -> anyhow::Result<()> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.add(Signal::SIGCHLD);
    signals.thread_block()?;
    while signals.wait()? == Signal::SIGCHLD {
        while !matches!(waitpid(Pid::from_raw(-1), Some(WaitPidFlag::WNOHANG)), Err(_) | Ok(WaitStatus::StillAlive)) {}
    }
    Ok(())
}
