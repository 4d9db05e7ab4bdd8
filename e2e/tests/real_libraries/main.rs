//! Tests of the probe, `nvidia-smi` and MPS with NVIDIA's real libraries, as packaged by Debian, without a GPU and without a
//! cluster. To run them: `cargo build --workspace`, then `cargo test -p e2e --test real_libraries`, both as root.
//!
//! What cannot be tested this way:
//!
//! - The data that a library reports for a GPU. Without a driver the libraries cannot be initialised, so the answers in
//!   `symbols` are the stand-in's.
//! - `nvidia-smi` with the stand-in. After `nvmlInitWithFlags` the program calls `nvmlInternalGetExportTable` for a table of
//!   functions that NVIDIA does not document. The stand-in does not have it, so the program exits, whatever its arguments.
//! - A running MPS server. It needs CUDA, which finds no device; the control daemon does not need CUDA, and is tested up to
//!   the server's start. In the background (`-d`), the two log to `control.log` and `server.log` in `CUDA_MPS_LOG_DIRECTORY`.
//! - MPS of branch 470, which Debian does not package.
//!
//! As root, each of these libraries creates `/dev/nvidiactl` if it is missing, even without a driver. So the probe's child
//! runs in a root of its own, as on a node; the other programs have their own `/dev`, and those in containers also their own
//! `/usr`.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod cuda;
mod inject;
mod mps;
mod probe;
mod smi;
mod support;
mod symbols;
