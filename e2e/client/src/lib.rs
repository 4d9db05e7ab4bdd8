//! The running cluster, as tests and benchmarks use it.

pub mod audit;
pub mod handle;
pub mod operator_process;
pub mod permissions;
pub mod probe_process;
