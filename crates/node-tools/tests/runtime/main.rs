//! The configuration of container runtimes: NVIDIA's entries are found and removed again, and everything else stays.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod files;
mod foreign_input;
mod steps;
mod toml;

use node_tools::runtime::{config_files::AddedEntries, entries::NvidiaEntries};

/// The folder of NVIDIA's programs.
const BIN: &str = "/usr/local/nvidia/toolkit";
/// The installer's pattern in containerd's `imports`.
const IMPORT: &str = "/etc/containerd/conf.d/*.toml";

fn entries() -> NvidiaEntries {
    NvidiaEntries { handler: "nvidia".into(), install_dir: BIN.into() }
}

fn added() -> AddedEntries {
    AddedEntries { entries: entries(), default: true }
}
