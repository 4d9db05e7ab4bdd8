//! End-to-end tests in the cluster that `cargo xtask test` starts: a real API server, real kubelets with containerd, and the
//! real images and chart of this repository. The GPUs (a sysfs tree and NVML) and the driver's image are stand-ins behind the
//! same interfaces, and in some tests the device plugin is one, too.
//!
//! Every test starts with a clean node, so tests run in any order, and as many at the same time as there are nodes. Tests of
//! the operator, the chart or the API server as a whole run alone.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod admission;
mod by_hand;
mod chart;
mod detector;
mod device_plugin;
mod documents;
mod dra;
mod driver_container;
mod eviction;
mod failures;
mod fleet_cli;
mod health;
mod host_driver;
mod install;
mod leaving;
mod mig;
mod mps;
mod no_gpus;
mod nodes;
mod policies;
mod restarts;
mod rollback;
mod rollout;
mod runtime;
mod side_by_side;
mod support;
mod systems;
mod uninstall;
mod upgrade;
mod validation;
