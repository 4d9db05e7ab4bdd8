//! The node agent of the GPU operator: reports facts about one node in that node's `GpuNode`, and provides the gates
//! that make the pods of one stage wait for the stage before.
//!
//! ```text
//!  sysfs, /etc ──▶ pci, os, driver, … ────┐
//!  /dev/kmsg ──▶ kernel_log ──────────────┼──▶ report (pure) ──▶ publish ──▶ GpuNode.status.report
//!  NVML ◀── inventory ◀─pipe─ child ──────┘                         │
//!            (a process of its own)   ▲                             │
//!                                     └──── agent: the loop ◀───────┴── GpuNode.spec.releaseDriver
//!                                                 └──▶ pulse, metrics ──▶ admin: /livez, /readyz, /metrics
//! ```
//!
//! Everything on the host is reached through [`host::HostRoot`], but for the kernel's log; nothing here writes to the host
//! but [`runtime`], the steps of the toolkit's pod where the container runtime has to be configured, and what runs in the
//! driver's pod: [`device_nodes`], and [`start`], which takes a dead container's root away. Nothing changes a GPU but
//! [`divide`], in the device plugin's pod, by steps that [`mig`] works out.

pub mod admin;
pub mod agent;
pub mod backoff;
pub mod brought;
pub mod child;
pub mod cli;
pub mod device_nodes;
pub mod divide;
pub mod driver;
pub mod gate;
pub mod health;
pub mod host;
pub mod inject;
pub mod inventory;
pub mod kernel_log;
pub mod metrics;
pub mod mig;
pub mod nouveau;
pub mod nvml;
pub mod os;
pub mod pci;
pub mod prepare;
pub mod publish;
pub mod pulse;
pub mod report;
pub mod runtime;
pub mod signal;
pub mod start;
pub mod vgpu;
pub mod words;

/// Name and version of this probe: its User-Agent.
pub const USER_AGENT: &str = concat!("nvml-probe/", env!("CARGO_PKG_VERSION"));
