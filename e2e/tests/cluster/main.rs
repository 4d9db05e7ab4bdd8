//! End-to-end tests on the cluster that `cargo xtask test` starts: a real API server, a real kubelet with containerd,
//! our real images and chart. Stand-ins, behind the same interfaces: the GPUs (a sysfs tree and NVML), the driver's
//! image and the device plugin.
//!
//! Every test begins from a node that nobody has touched, so that they run in any order, as many at a time as there are
//! nodes. Those that touch the operator, the chart or the API server as a whole run alone.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

mod admission;
mod by_hand;
mod chart;
mod device_plugin;
mod diagnosis;
mod documents;
mod driver_container;
mod failures;
mod health;
mod host_driver;
mod install;
mod mig;
mod mps;
mod nodes;
mod policies;
mod restarts;
mod rollout;
mod runtime;
mod side_by_side;
mod support;
mod systems;
mod uninstall;
mod validation;
