//! The probe: its agent with a mocked API server, its NVML child with the stand-in library, and its program as the pods run it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod agent;
mod announce;
mod api_server;
mod child;
mod cuda;
mod endpoints;
mod foreign_input;
mod gates;
mod health;
mod kernel_log;
mod mig;
mod pod_resources;
mod process;
mod publish;
mod readings;
mod run;
mod running;

/// The probe's program.
const PROBE: &str = env!("CARGO_BIN_EXE_nvml-probe");
