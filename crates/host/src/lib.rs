//! Facts of a node's host, for the programs that run on the node: files, PCI bus, kernel log, driver and NVML.
//!
//! ```text
//!  sysfs, /etc, /dev/kmsg ──▶ observe
//!
//!  libnvidia-ml.so ◀── nvml::child ◀─pipe─▶ nvml::supervisor
//! ```
//!
//! The modules in the order of their dependencies; each one uses only those above it:
//!
//! | Module | Content |
//! |---|---|
//! | [`process`] | what every command needs: termination, errors, durations, retries |
//! | [`root`] | the host's file system as mounted in the container |
//! | [`grpc`] | requests to servers on the node, such as kubelet and the container runtime |
//! | [`observe`] | facts of the host without NVML: PCI bus, driver, device nodes, operating system, runtimes, kernel log, pods |
//! | [`nvml`] | NVML in a child process: what it reports of GPUs and MIG, and the supervisor of the child |
//! | [`cuda`] | `cuInit` in another child process of that supervisor |
//!
//! Everything on the host is reached through [`root::HostRoot`], except for the kernel log. Nothing in here writes to the host;
//! only [`nvml::supervisor::Supervisor::apply_mig_step`] changes a GPU.

pub mod cuda;
pub mod grpc;
pub mod nvml;
pub mod observe;
pub mod process;
pub mod root;
