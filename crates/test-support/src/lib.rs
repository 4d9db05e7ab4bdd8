//! What the tests of several crates share.
//!
//! | Module | Content |
//! |---|---|
//! | `sim` | a model of the plan's environment: API server, DaemonSet controller, kubelets, probes |
//! | `damaged` | damaged samples of input from outside |
//! | `faults` | faults of the stand-in NVML, and the health that the probe derives from them |
//! | `planned` | the writes of a plan by what they write |
//! | `host` | a host in a temporary directory, with the stand-in for NVML (feature `host`) |
//! | `kubelet` | kubelet's pod resources socket (feature `host`) |
//! | `random` | the configuration of random tests |
//! | `rejected` | invalid policies, their messages and the corrections |
//! | `yaml_blocks` | the YAML in README, docs and examples |
#![allow(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::new_without_default,
    clippy::panic,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "test support fails like a test"
)]

pub mod damaged;
pub mod faults;
#[cfg(feature = "host")]
pub mod host;
#[cfg(feature = "host")]
pub mod kubelet;
pub mod planned;
pub mod random;
pub mod rejected;
pub mod sim;
pub mod yaml_blocks;
