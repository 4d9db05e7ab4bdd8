//! The gpu-operator: a Kubernetes operator for the NVIDIA GPU node stack of a mixed fleet.
//!
//! ```text
//!  Node, GpuNode, DaemonSet, Pod ──watch──▶ observe ──▶ plan (pure) ──▶ apply ──▶ status
//!                                             ▲                           │
//!              nvml-probe on each node ───────┘ (GpuNode.status.report)   └──▶ labels, DaemonSets, GpuNode.spec
//! ```
//!
//! [`watch`] mirrors facts and wakes the loop, which is [`reconcile`]. A [`gpu_operator_plan::pass::Pass`] decides what to read and
//! what to write; [`drive`] carries out its requests: [`observe`] reads what no mirror holds, and [`apply`] writes. [`election`] decides
//! which of several replicas does that. [`client`] and [`extract`] bound the memory of answers. Only this crate does I/O (`watch`, `observe`,
//! `apply`, `events`, `installation_watch`, `admin`, `check`, `uninstall`); time is an argument of the pass.

pub mod admin;
pub mod apply;
pub mod check;
pub mod cli;
pub mod client;
pub mod drive;
pub mod election;
pub mod error;
pub mod events;
pub mod extract;
pub mod installation;
pub mod installation_watch;
pub mod metrics;
pub mod observe;
pub mod reconcile;
pub mod uninstall;
pub mod watch;
