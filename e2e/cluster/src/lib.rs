//! A real Kubernetes cluster on one machine: a control plane, real nodes, and the operator's chart.
//!
//! A node is containerd and kubelet in namespaces of their own, over a copy-on-write view of the machine's root, so that
//! nothing outside `target/e2e` is written and everything vanishes with one process. The nodes and the control plane are
//! connected by a network of their own. GPUs, driver and NVML are stand-ins, controlled through the files of
//! [`standin::Standin`].

pub mod chart;
pub mod clients;
pub mod control_plane;
pub mod diagnosis;
pub mod hidden;
pub mod kwok;
pub mod lifecycle;
mod network;
pub mod node;
pub mod pki;
pub mod standin;
pub mod state;
