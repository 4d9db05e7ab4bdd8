//! The node agent of the GPU operator: reports facts about one node in that node's `GpuNode`, and provides the gates
//! that make the pods of one stage wait for the stage before.
//!
//! ```text
//!  sysfs, /etc, /dev/kmsg ──▶ observe ─────────────┐
//!                                                  ├──▶ health ──▶ report ──▶ GpuNode.status.report
//!  libnvidia-ml.so ◀── nvml::child ◀─pipe─▶ nvml ──┘                  ▲
//!                                            ▲                        │
//!                                            └─────── agent: the loop ┴─── GpuNode.spec.releaseDriver
//!                                                       └──▶ /livez, /readyz, /metrics
//! ```
//!
//! The modules in the order of their dependencies; each one uses only those above it:
//!
//! | Module | Content |
//! |---|---|
//! | [`process`] | what every command needs: termination, errors, durations, retries |
//! | [`host`] | the host's file system as mounted in the container |
//! | [`observe`] | facts of the host without NVML: PCI bus, driver, device nodes, operating system, runtimes, kernel log |
//! | [`nvml`] | NVML in a child process: what it reports of GPUs and MIG, and the supervisor of the child |
//! | [`health`] | the health of GPUs, evaluated from readings and XIDs; pure |
//! | [`mig`] | MIG layouts: planned (pure) and applied |
//! | [`runtime`] | NVIDIA's entries in the container runtime's configuration: recorded, loaded, watched, removed |
//! | [`gates`] | `wait`, `guard` and `unload-nouveau`: what a container waits for before it starts |
//! | [`operands`] | `device-nodes`, `inject`, `unpack` and `write`: helpers in the pods of the operands |
//! | [`report`] | the report of the node: built (pure) and written to the GpuNode |
//! | [`agent`] | `run`: the loop, its heartbeat, metrics and HTTP endpoints |
//! | [`cli`] | the command line |
//!
//! Everything on the host is reached through [`host::HostRoot`], except for the kernel log. Only three parts write to the
//! host: [`runtime`], in the toolkit's pod, and [`operands::device_nodes`] and [`gates::shown_root`], in the driver's pod.
//! Only [`mig::apply`], in the device plugin's pod, changes a GPU.

pub mod agent;
pub mod cli;
pub mod gates;
pub mod health;
pub mod host;
pub mod mig;
pub mod nvml;
pub mod observe;
pub mod operands;
pub mod process;
pub mod report;
pub mod runtime;

/// Name and version of this probe: its User-Agent.
pub const USER_AGENT: &str = concat!("nvml-probe/", env!("CARGO_PKG_VERSION"));
