//! The container runtime of a node: what NVIDIA's installer enters into its configuration is kept apart from what was
//! there, loaded by a restart only if that is needed, watched, and taken out again.
//!
//! Steps of one pod, in order: [`steps::snapshot`], NVIDIA's installer, [`steps::apply`], [`steps::keep`]; and
//! [`steps::revert`] when the pod goes.

pub mod args;
pub mod cri;
pub mod daemon;
pub mod daemon_json;
pub mod files;
pub mod record;
pub mod restart;
pub mod state;
pub mod steps;
pub mod toml_file;
pub mod unit;
