//! NVML, queried in a child process.
//!
//! ```text
//!  supervisor ──Request──▶ child (a process of its own): libnvidia-ml.so
//!             ◀─Response──
//! ```

pub mod child;
pub mod protocol;
pub mod readings;
pub mod supervisor;
pub mod trusted;
