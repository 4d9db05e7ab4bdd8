//! The archive of a bundle, a `.tar.gz`.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

const FOLDER: &str = "gpu-fleet-support-bundle";

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    pub collected_at: Timestamp,
    pub cli_version: &'static str,
    pub server_version: Option<String>,
    pub operator_namespace: String,
    /// The nodes whose logs are in the bundle.
    pub nodes_with_logs: Vec<String>,
    pub missing: BTreeSet<Missing>,
}

/// What a bundle does not contain, although it was asked for.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Missing {
    pub what: String,
    pub reason: String,
}

/// An archive that is being written.
pub struct Archive<W: Write> {
    tar: tar::Builder<GzEncoder<W>>,
    time: u64,
}

impl<W: Write> Archive<W> {
    pub fn new(file: W, now: Timestamp) -> Self {
        let tar = tar::Builder::new(GzEncoder::new(file, Compression::default()));
        Self { tar, time: u64::try_from(now.as_second()).unwrap_or_default() }
    }

    pub fn add_object(&mut self, path: &str, object: &Value) -> io::Result<()> {
        self.add(path, &format!("{object:#}\n"))
    }

    pub fn add(&mut self, path: &str, content: &str) -> io::Result<()> {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(self.time);
        self.tar.append_data(&mut header, format!("{FOLDER}/{path}"), content.as_bytes())
    }

    /// Adds the manifest, and ends the archive.
    pub fn finish(mut self, manifest: &Manifest) -> io::Result<()> {
        self.add_object("manifest.json", &serde_json::to_value(manifest)?)?;
        self.tar.into_inner()?.finish()?.flush()
    }
}
