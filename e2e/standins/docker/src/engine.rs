//! What Docker's API says.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

/// A Docker engine, by its socket.
#[derive(Clone, Debug)]
pub struct Engine(pub PathBuf);

impl Engine {
    pub async fn version(&self) -> Result<String> {
        self.get("/version").await?["Version"].as_str().map(str::to_owned).context("no version")
    }

    /// Returns the program that its default runtime is.
    pub async fn default_runtime(&self) -> Result<String> {
        let info = self.get("/info").await?;
        let name = info["DefaultRuntime"].as_str().context("no default runtime")?;
        info["Runtimes"][name]["path"].as_str().map(str::to_owned).with_context(|| format!("no runtime {name}"))
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let answer = self.ask(path).await.with_context(|| format!("asking Docker for {path}"))?;
        let body = answer.split_once("\r\n\r\n").context("no body")?.1;
        serde_json::from_str(body).with_context(|| answer.clone())
    }

    async fn ask(&self, path: &str) -> std::io::Result<String> {
        let socket: &Path = &self.0;
        let (mut stream, mut answer) = (UnixStream::connect(socket).await?, String::new());
        // By this version of HTTP the body ends with the connection.
        stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: docker\r\n\r\n").as_bytes()).await?;
        stream.read_to_string(&mut answer).await?;
        Ok(answer)
    }
}
