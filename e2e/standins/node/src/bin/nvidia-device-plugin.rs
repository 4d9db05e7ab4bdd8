//! The entry point of the stand-in device plugin.

use std::process::ExitCode;

use standin_node::{
    plugin::{self, Config},
    report,
};

#[tokio::main]
async fn main() -> ExitCode {
    match Box::pin(plugin::run(Config::from_env())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
