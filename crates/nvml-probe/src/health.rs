//! GPU health, evaluated on the node so that it stays correct while the operator is unavailable.
//!
//! ```text
//!  readings ──▶ findings ──▶ gpu: causes over time ──▶ GpuNode.status.report.gpus[].health
//!  xids ──▶ deduplicator ─────▲        ▲
//!  rules (GpuNode.spec.health) ────────┘
//! ```
//!
//! Everything in here is pure: no NVML, no clock, no files.

mod cause;
pub mod findings;
pub mod gpu;
pub mod node;
pub mod rules;
pub mod xid;

#[cfg(test)]
mod tests;
