//! `nvidia-driver init`: the entry point of the stand-in driver container.

use std::{env, process::ExitCode};

use anyhow::{Result, bail};
use standin_node::{
    driver::{self, Image, Paths},
    report,
};

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match init().await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn init() -> Result<()> {
    // Further arguments are for the real installer.
    if env::args().nth(1).as_deref() != Some("init") {
        bail!("usage: nvidia-driver init");
    }
    driver::run(&Paths::from_env(), &Image::from_env()?).await
}
