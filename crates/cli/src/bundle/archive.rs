//! The contents of a support bundle, and the archive: a `.tar.gz` of limited size that depends only on its contents. Everything
//! enters through [`Contents`], which removes credentials.

use std::{
    collections::BTreeSet,
    io::{self, Write},
};

use flate2::{Compression, write::GzEncoder};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    bundle::redact::{object::object, text::text},
    read::ReadError,
};

const FOLDER: &str = "gpu-fleet-support-bundle";
/// What a file takes in the archive in addition to its content, in bytes: its header and its line in the manifest, both compressed.
const PER_FILE: usize = 256;

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct About {
    pub collected_at: Timestamp,
    pub cli_version: &'static str,
    pub server_version: Option<String>,
    pub operator_namespace: String,
    /// The nodes whose pods, logs and metrics are in the bundle. Those that need attention come first.
    pub nodes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    #[serde(flatten)]
    pub about: About,
    pub files: Vec<Listed>,
    pub left_out: BTreeSet<Absence>,
    pub not_read: BTreeSet<Absence>,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Listed {
    /// The path below the folder of the bundle.
    pub path: String,
    pub size: usize,
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

pub fn sha256(content: &[u8]) -> String {
    let digit = |value: u8| char::from_digit(u32::from(value), 16).unwrap_or_default();
    Sha256::digest(content).iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub path: String,
    pub content: String,
}

/// What a bundle does not contain, although it was asked for.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Absence {
    /// The path of the file, or what it would contain.
    pub what: String,
    pub reason: String,
}

/// The contents of a bundle, the most important first.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    entries: Vec<Entry>,
    left_out: BTreeSet<Absence>,
    not_read: BTreeSet<Absence>,
}

#[derive(Debug)]
pub struct Parts {
    pub entries: Vec<Entry>,
    /// What is not in the bundle because of a limit.
    pub left_out: BTreeSet<Absence>,
    pub not_read: BTreeSet<Absence>,
}

impl Contents {
    /// Adds an object, or a list of objects, without its credentials.
    pub fn add_object(&mut self, path: String, mut value: Value) {
        object(&mut value);
        self.entries.push(Entry { path, content: format!("{value:#}\n") });
    }

    pub fn add_text(&mut self, path: String, content: &str) {
        self.entries.push(Entry { path, content: text(content) });
    }

    pub fn leave_out(&mut self, what: &str, reason: &str) {
        self.left_out.insert(Absence { what: what.to_owned(), reason: reason.to_owned() });
    }

    /// Records what could not be read, for example because a right is missing.
    pub fn add_unread(&mut self, what: &str, error: &ReadError) {
        self.not_read.insert(Absence { what: what.to_owned(), reason: text(&error.to_string()) });
    }

    /// Returns the size of all files in a folder, in bytes.
    pub fn size_of(&self, folder: &str) -> usize {
        let in_folder = self.entries.iter().filter(|entry| entry.path.starts_with(folder));
        in_folder.map(|entry| entry.content.len()).sum()
    }

    pub fn append(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
        self.left_out.append(&mut other.left_out);
        self.not_read.append(&mut other.not_read);
    }

    pub fn into_parts(self) -> Parts {
        Parts { entries: self.entries, left_out: self.left_out, not_read: self.not_read }
    }
}
