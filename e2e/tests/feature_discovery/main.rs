//! NVIDIA's real GPU feature discovery and the probe with the operator beside each other, on the same machines: the labels must be
//! the same. Without a cluster and without a GPU; NVML is the stand-in. By hand: `cargo build --workspace`, then
//! `cargo test -p e2e --test feature_discovery`, both as root.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod gfd;
mod labels;
mod machine;
