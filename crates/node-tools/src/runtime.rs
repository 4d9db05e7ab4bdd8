//! Configures a node's container runtime: keeps NVIDIA's entries apart from the existing configuration, has the runtime
//! load them with as few restarts as possible, watches them, and removes them again.
//!
//! The steps of one pod, in order: [`steps::snapshot`], [`steps::check_flags`], NVIDIA's installer, [`steps::apply`], [`steps::keep`]; and
//! [`steps::revert`] when the pod is deleted.

pub mod config_files;
pub mod daemon;
pub mod daemon_json;
pub mod docker;
pub mod entries;
pub mod restart;
pub mod state;
pub mod steps;
pub mod toml_file;
