//! The device plugin, with a fake kubelet.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests too

mod kubelet;
mod process;
mod service;
