//! A real Kubernetes cluster on one machine, for the demo and the end-to-end tests.
//!
//! `cargo xtask` ([`cli`]) builds the tools, starts a control plane and real nodes, builds and imports the images,
//! installs the chart and takes everything down again. Tests get the running cluster as a [`Cluster`].
//!
//! A node is containerd and kubelet in namespaces of their own, over a copy-on-write view of the machine's root, so that
//! nothing outside `target/e2e` is written and everything vanishes with one process. The nodes and the control plane meet
//! in a network of their own. GPUs, driver and NVML are stand-ins, steered through the files of [`Standin`].

#[macro_use]
mod progress;

mod asked;
pub mod audit;
mod benchmark;
mod cgroups;
mod chart;
pub mod cli;
pub mod cluster;
pub mod containerd;
mod control_plane;
pub mod debian;
mod demo;
pub mod failures;
pub mod faults;
pub mod fleet;
mod images;
mod kubelet;
mod kwok;
mod lifecycle;
mod lock;
mod machines;
mod module_users;
mod namespace;
mod network;
mod node;
pub mod operator_process;
mod packages;
mod paths;
mod pki;
mod probe_process;
mod process;
mod real_node;
mod stages;
pub mod standin;
mod state;
mod tools;
mod traces;
pub mod usage;
pub mod wait;

pub use cluster::Cluster;
pub use containerd::Containerd;
pub use fleet::Fleet;
pub use operator_process::OperatorProcess;
pub use real_node::{HostDriver, RealNode};
pub use standin::{DriverMode, Gpu, Standin};
pub use tools::{nvidia_plugin_programs, nvidia_programs};
pub use wait::eventually;
