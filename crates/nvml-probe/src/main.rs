//! The node agent of the GPU operator.

use std::{io, process::ExitCode};

use clap::Parser;
use gpu_host::process::error_chain;
use nvml_probe::cli::Cli;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Standard output is used by the protocol with the NVML child.
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
    match Cli::parse().execute() {
        Ok(code) => code,
        Err(error) => {
            tracing::error!("{}", error_chain(&error));
            ExitCode::FAILURE
        }
    }
}
