//! A real Kubernetes cluster on one machine, for the demo and the end-to-end tests.
//!
//! `cargo xtask` ([`cli`]) builds the tools, starts a control plane and real nodes, builds and imports the images, installs
//! the chart, and removes everything again. Tests get the running cluster as a [`Cluster`].
//!
//! A node is containerd and kubelet in namespaces of their own, over a copy-on-write view of the machine's root, so that
//! nothing outside `target/e2e` is written and everything vanishes with one process. The nodes and the control plane are
//! connected by a network of their own. GPUs, driver and NVML are stand-ins, controlled through the files of [`Standin`].
//!
//! The folders, each of which imports only from those above it:
//!
//! | Folder | Content |
//! |---|---|
//! | `harness` | files, processes, programs and images on this machine; no cluster |
//! | `generated` | the generated files of the checkout |
//! | `standin` | control of the stand-ins for GPUs, driver and NVML |
//! | `cluster` | the running cluster: control plane, chart, operator, probe; real nodes in `cluster/node` |
//! | `fleet` | simulated nodes in the running cluster |
//! | `benchmark` | `cargo xtask benchmark` |
//! | `release` | `cargo xtask release` |
//! | `xtask` | the commands of `cargo xtask`: arguments, demo, test run |

#[macro_use]
mod harness;

mod benchmark;
mod cluster;
pub mod fleet;
mod generated;
mod release;
mod standin;
mod xtask;

pub use cluster::{
    audit,
    handle::Cluster,
    node::{
        containerd::Containerd,
        real_node::{HostDriver, RealNode},
    },
    operator_process::OperatorProcess,
};
pub use fleet::Fleet;
pub use harness::{
    cargo::Build,
    debian,
    tools::{actionlint, nvidia_plugin_programs, nvidia_programs},
    usage,
    wait::eventually,
};
pub use standin::{DriverMode, Gpu, Standin, faults};
pub use xtask::{cli, test_failures};
