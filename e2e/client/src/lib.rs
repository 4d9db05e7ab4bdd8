//! The running cluster, as tests and benchmarks use it.
#![allow(
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "what can fail here is the machine, and the errors have the details"
)]

pub mod audit;
pub mod handle;
pub mod operator_process;
pub mod permissions;
pub mod probe_process;
