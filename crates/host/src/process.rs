//! What every command of a program on the node needs: termination, errors, durations and retries.

mod backoff;
mod duration;
mod error_chain;
mod exec;
mod shutdown;
mod termination_log;

pub use backoff::Backoff;
pub use duration::parse_duration;
pub use error_chain::error_chain;
pub use exec::{ExecError, become_program};
pub use shutdown::{EXIT_TERMINATED, Shutdown, run_on_this_thread};
pub use termination_log::write_termination_log;
