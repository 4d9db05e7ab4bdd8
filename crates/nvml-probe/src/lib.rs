//! The node agent of the GPU operator: reports facts about one node in that node's `GpuNode`. Its program also contains the
//! tools of the operator's pods ([`node_tools`]).
//!
//! ```text
//!  gpu_host::observe ─┐
//!                     ├──▶ health ──▶ report ──▶ GpuNode.status.report
//!  gpu_host::nvml ────┘                  ▲
//!        ▲                               │
//!        └────────────── agent: the loop ┴─── GpuNode.spec.releaseDriver
//!                          └──▶ /livez, /readyz, /metrics
//! ```
//!
//! The modules in the order of their dependencies; each one uses only those above it:
//!
//! | Module | Content |
//! |---|---|
//! | [`health`] | the health of GPUs, evaluated from readings and XIDs; pure |
//! | [`report`] | the report of the node: built (pure) and written to the GpuNode |
//! | `error_log` | what the loops log of repeated errors |
//! | [`detector`] | `detect`: the loop without privileges, which only creates the GpuNode |
//! | [`agent`] | `run`: the loop, its heartbeat, metrics and HTTP endpoints |
//! | [`cli`] | the command line |

pub mod agent;
pub mod cli;
pub mod detector;
mod error_log;
pub mod health;
pub mod report;

/// Name and version of this probe: its User-Agent.
pub const USER_AGENT: &str = concat!("nvml-probe/", env!("CARGO_PKG_VERSION"));
