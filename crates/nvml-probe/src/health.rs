//! The health of GPUs, judged on the node so that it stays true while the operator is away.
//!
//! ```text
//!  readings ──▶ findings ──▶ gpu: causes over time ──▶ GpuNode.status.report.gpus[].health
//!  xids ──▶ tally ────────────▲        ▲
//!  rules (GpuNode.spec.health) ────────┘
//! ```
//!
//! Everything in here is pure: no NVML, no clock, no files.

mod cause;
pub mod findings;
pub mod gpu;
pub mod kind;
pub mod node;
pub mod readings;
pub mod rules;
pub mod tally;
pub mod xid;

#[cfg(test)]
mod tests;
