//! The probe, `nvidia-smi` and MPS with NVIDIA's real libraries, as Debian packages them, without a GPU and without a cluster.
//! By hand: `cargo build --workspace`, then `cargo test -p e2e --test real_libraries`, both as root.
//!
//! What cannot be tested this way:
//!
//! - What a library says of a GPU. Without a driver each refuses to be initialised, so the answers in `symbols` are the
//!   stand-in's.
//! - `nvidia-smi` with the stand-in. After `nvmlInitWithFlags` the program asks for `nvmlInternalGetExportTable`, a table of
//!   functions that NVIDIA does not document, and of which the stand-in has none; it ends there whatever it was told to do.
//! - A server of MPS at work. It needs CUDA, which finds no device; the control daemon needs none and is tested up to there. In
//!   the background (`-d`), the lines of the two are in `control.log` and `server.log` of `CUDA_MPS_LOG_DIRECTORY`.
//! - MPS of branch 470, of which Debian has no package.
//!
//! As root, each of these libraries makes `/dev/nvidiactl` where it finds none, driver or not. So the probe's child meets them in
//! a root of its own, as on a node, and the other programs have a `/dev` of their own, those in containers a `/usr` besides.
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "../common/mod.rs"]
mod common;
mod inject;
mod mps;
mod probe;
mod smi;
mod support;
mod symbols;
