//! The entry point of the stand-in device plugin.

use std::process::ExitCode;

use standin_node::report;
use standin_plugin::Config;

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(standin_plugin::run(Config::from_env())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
