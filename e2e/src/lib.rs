//! A real Kubernetes cluster on one machine, for the demo and the end-to-end tests.
//!
//! `cargo xtask` ([`cli`]) builds the tools, starts a control plane and one real node, builds and imports the images,
//! installs the chart and takes everything down again. Tests get the running cluster as a [`Cluster`].
//!
//! The node is containerd and kubelet in their own process and mount namespaces, over a copy-on-write view of the
//! machine's root, so that nothing outside `target/e2e` is written and everything vanishes with one process. GPUs,
//! driver and device plugin are stand-ins, steered through the files of [`Standin`].

#[macro_use]
mod progress;

pub mod audit;
mod benchmark;
mod chart;
pub mod cli;
pub mod cluster;
mod config;
mod control_plane;
mod demo;
pub mod failures;
pub mod faults;
pub mod fleet;
mod images;
mod kwok;
mod lifecycle;
mod lock;
mod module_users;
mod namespace;
mod node;
pub mod operator_process;
mod packages;
mod paths;
mod pki;
mod probe_process;
mod process;
mod stages;
pub mod standin;
mod state;
mod tools;
pub mod usage;
pub mod wait;

pub use cluster::{Cluster, HostDriver};
pub use fleet::Fleet;
pub use operator_process::OperatorProcess;
pub use standin::{DriverMode, Gpu, Standin};
pub use tools::nvidia_programs;
pub use wait::eventually;
