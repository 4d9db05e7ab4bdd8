//! The entry point of the stand-in for an installer that puts a driver onto the host and ends.

use std::{env, process::ExitCode};

use standin_node::{
    driver::{Folders, install_on_host},
    report,
};

/// What it installs where nobody names a version, as Google's have one of their own.
const OWN_VERSION: &str = "535.309.01";

fn main() -> ExitCode {
    let version = env::var("NVIDIA_DRIVER_VERSION").unwrap_or_else(|_| OWN_VERSION.to_owned());
    match install_on_host(&Folders::from_env(), &version) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}
