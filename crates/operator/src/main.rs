//! The operator's binary: sets up logging, then runs the command line.

use std::{io::IsTerminal, process::ExitCode};

use clap::Parser;
use gpu_operator::cli::Cli;
use tracing_subscriber::EnvFilter;

// One thread is enough: most of the time is spent waiting for the API server, and every further thread would cost memory.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match Cli::parse().run().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(%error, "gpu-operator failed");
            ExitCode::FAILURE
        }
    }
}
