//! A stand-in for cri-dockerd, which is neither a Go module that can be fetched nor a Debian package. Docker is real, but containerd runs the
//! pods, as Docker would: by the default runtime of Docker's configuration, without CDI, and without RuntimeClasses.

mod proxy;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tokio::net::{UnixListener, UnixStream};

pub use proxy::Engine;

/// Serves the CRI at `socket`, once containerd and Docker answer.
pub async fn serve(socket: &Path, containerd: PathBuf, engine: Engine) -> Result<()> {
    engine.version().await?;
    UnixStream::connect(&containerd).await.with_context(|| format!("connecting to {}", containerd.display()))?;
    // That of an earlier process.
    let _none = std::fs::remove_file(socket);
    let listener = UnixListener::bind(socket).with_context(|| format!("listening at {}", socket.display()))?;
    loop {
        let (client, _) = listener.accept().await?;
        let (containerd, engine) = (containerd.clone(), engine.clone());
        tokio::spawn(async move {
            if let Err(error) = proxy::connection(client, &containerd, engine).await {
                eprintln!("a connection has ended: {error:#}");
            }
        });
    }
}
