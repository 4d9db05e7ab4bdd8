//! Checks that NVIDIA's real GPU feature discovery and the operator with its probe publish the same labels on the same
//! machines. The tests need no cluster and no GPU; NVML is the stand-in. To run them: `cargo build --workspace`, then
//! `cargo test -p e2e --test feature_discovery`, both as root.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod gfd;
mod labels;
mod machine;
