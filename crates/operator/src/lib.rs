//! The gpu-operator: a Kubernetes operator for the NVIDIA GPU node stack of a mixed fleet.
//!
//! ```text
//!  Node, GpuNode, DaemonSet, Pod ──watch──▶ observe ──▶ plan (pure) ──▶ apply ──▶ status
//!                                             ▲                           │
//!              nvml-probe on each node ───────┘ (GpuNode.status.report)   └──▶ labels, DaemonSets, GpuNode.spec
//! ```
//!
//! [`watch`] mirrors facts and wakes, [`observe`] gathers them into a [`gpu_operator_plan::world::World`],
//! [`gpu_operator_plan::plan`] decides, [`apply`] writes, [`reconcile`] is the loop around them. Only the rim (`watch`,
//! `observe`, `apply`, `events`, `admin`) does I/O; time enters the plan as an argument.

pub mod admin;
pub mod advise;
pub mod apply;
pub mod cli;
pub mod diagnose;
pub mod error;
pub mod events;
pub mod metrics;
pub mod observe;
pub mod pace;
pub mod reconcile;
pub mod watch;
