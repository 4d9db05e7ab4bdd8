//! NVML, queried in a child process.
//!
//! ```text
//!  supervisor ──Request──▶ child (a process of its own): libnvidia-ml.so
//!             ◀─Response──
//! ```

pub mod child;
pub mod inventory;
pub mod mig;
pub mod protocol;
pub mod readings;
pub mod supervisor;
pub mod target;
pub mod trusted;
