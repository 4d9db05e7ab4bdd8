//! The entry point of the stand-in for an installer that puts a driver on the host and exits.

use std::{env, process::ExitCode};

use anyhow::Context;
use standin_node::{
    driver::{Folders, install_on_host},
    report,
};

fn main() -> ExitCode {
    let version = env::var("NVIDIA_DRIVER_VERSION").context("NVIDIA_DRIVER_VERSION");
    match version.and_then(|version| install_on_host(&Folders::from_env(), &version)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
