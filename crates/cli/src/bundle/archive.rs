//! The archive of a support bundle: a `.tar.gz` of limited size that depends only on its contents.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::{
    contents::{Absence, Contents, Entry, Parts},
    trim::sha256,
};

const FOLDER: &str = "gpu-fleet-support-bundle";
/// What a file takes in the archive in addition to its content, in bytes: its header and its line in the manifest, both compressed.
const PER_FILE: usize = 256;

/// What is known about the bundle as a whole.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    /// The time at which the command was started.
    pub collected_at: Timestamp,
    /// The version of this command.
    pub cli_version: &'static str,
    /// The version of the API server.
    pub server_version: Option<String>,
    pub operator_namespace: String,
    /// The nodes of which the bundle contains pods, logs and metrics, the first of which need attention most.
    pub nodes: Vec<String>,
}

/// A table of contents.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// What is known about the bundle as a whole.
    #[serde(flatten)]
    pub about: About,
    /// The files, by path.
    pub files: Vec<Listed>,
    /// What is not in the bundle because of a limit.
    pub left_out: BTreeSet<Absence>,
    /// What could not be read.
    pub not_read: BTreeSet<Absence>,
}

/// A file in the manifest.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// The path below the folder of the bundle.
    pub path: String,
    /// The size in bytes.
    pub size: usize,
    /// The SHA-256 checksum in hexadecimal form.
    pub sha256: String,
}

/// Returns the archive, which has at most `limit` bytes, and its manifest. Of files that do not fit, the least important are left out.
pub fn pack(contents: Contents, about: &About, limit: usize) -> io::Result<(Vec<u8>, Manifest)> {
    let Parts { entries, mut left_out, not_read } = contents.into_parts();
    let reason = format!("the limit of {limit} bytes for the bundle");
    let absence = |entry: &Entry| Absence { what: entry.path.clone(), reason: reason.clone() };
    let (mut kept, mut size) = (Vec::new(), 0);
    for entry in entries {
        let more = compressed_size(entry.content.as_bytes())? + PER_FILE;
        if size + more <= limit {
            size += more;
            kept.push(entry);
        } else {
            left_out.insert(absence(&entry));
        }
    }
    loop {
        let manifest = Manifest {
            about: about.clone(),
            files: listed(&kept),
            left_out: left_out.clone(),
            not_read: not_read.clone(),
        };
        let archive = written(&manifest, &kept)?;
        // The names of what is left out take space, too.
        match kept.pop() {
            Some(entry) if archive.len() > limit => drop(left_out.insert(absence(&entry))),
            _ => return Ok((archive, manifest)),
        }
    }
}

fn compressed_size(content: &[u8]) -> io::Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content)?;
    Ok(encoder.finish()?.len())
}

fn listed(entries: &[Entry]) -> Vec<Listed> {
    let of = |entry: &Entry| {
        let content = entry.content.as_bytes();
        Listed { path: entry.path.clone(), size: content.len(), sha256: sha256(content) }
    };
    let mut listed: Vec<Listed> = entries.iter().map(of).collect();
    listed.sort_by(|a, b| a.path.cmp(&b.path));
    listed
}

fn written(manifest: &Manifest, entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut sorted: Vec<&Entry> = entries.iter().collect();
    sorted.sort_by(|a, b| a.path.cmp(&b.path));
    // The encoder's header has no time and no name of a file.
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let manifest = serde_json::to_string_pretty(manifest)? + "\n";
    append(&mut archive, "manifest.json", manifest.as_bytes())?;
    for entry in sorted {
        append(&mut archive, &entry.path, entry.content.as_bytes())?;
    }
    archive.into_inner()?.finish()
}

fn append<W: Write>(archive: &mut tar::Builder<W>, path: &str, content: &[u8]) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    archive.append_data(&mut header, format!("{FOLDER}/{path}"), content)
}
