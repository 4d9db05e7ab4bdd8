//! The gpu-operator: a Kubernetes operator for the NVIDIA GPU node stack of a mixed fleet.
//!
//! ```text
//!  Node, GpuNode, DaemonSet, Pod ──watch──▶ observe ──▶ plan (pure) ──▶ apply ──▶ status
//!                                             ▲                           │
//!              nvml-probe on each node ───────┘ (GpuNode.status.report)   └──▶ labels, DaemonSets, GpuNode.spec
//! ```
//!
//! [`watch`] mirrors facts and wakes the loop, [`observe`] adds facts that no mirror holds to the
//! [`gpu_operator_plan::world::World`], [`gpu_operator_plan::plan`] decides, [`apply`] writes, and [`reconcile`] is the loop around
//! them. Only this crate does I/O (`watch`, `observe`, `apply`, `events`, `advise`, `admin`); time is an argument of the plan.

pub mod admin;
pub mod advise;
pub mod apply;
pub mod cli;
pub mod diagnose;
pub mod error;
pub mod events;
pub mod metrics;
pub mod observe;
pub mod progress;
pub mod reconcile;
pub mod watch;
