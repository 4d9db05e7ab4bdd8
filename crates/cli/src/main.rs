//! `kubectl-gpu_fleet`, a kubectl plugin: `kubectl gpu-fleet`.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::Parser;
use gpu_operator_cli::fleet::Fleet;
use tracing_subscriber::EnvFilter;

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal())
        .with_writer(io::stderr)
        .without_time()
        .with_target(false)
        .init();
    let fleet = match Fleet::try_parse() {
        Ok(fleet) => fleet,
        // Not clap's code 2, which `plan` uses for changes.
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
        }
    };
    match fleet.run().await {
        Ok(code) => code,
        Err(error) => {
            // If standard error is closed, the exit code remains.
            let _ = writeln!(io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
