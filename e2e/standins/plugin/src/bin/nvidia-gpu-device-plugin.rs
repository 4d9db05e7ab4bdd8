//! The entry point of the stand-in for Google's device plugin.

use std::{env, process::ExitCode};

use standin_node::report;

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match Box::pin(standin_plugin::run_as_googles(&args)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
