//! The stand-in for cri-dockerd. Arguments: its socket, containerd's and Docker's.

use anyhow::{Context, Result};
use standin_docker::{Engine, serve};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1);
    let mut socket = || arguments.next().map(std::path::PathBuf::from).context("three sockets are expected");
    let (own, containerd, docker) = (socket()?, socket()?, socket()?);
    serve(&own, containerd, Engine(docker)).await
}
