//! The names of a release's files, and what they are made of.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

pub(super) use harness::licences::PROGRAMS;

/// The version of all packages, images and the chart.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The architectures of the images.
pub(super) const ARCHITECTURES: [&str; 2] = ["amd64", "arm64"];

/// Returns the path of a file of this version: `NAME-VERSION.ENDING`.
pub(super) fn file(folder: &Path, name: &str, ending: &str) -> PathBuf {
    folder.join(format!("{name}-{VERSION}.{ending}"))
}

/// Returns the names and sizes, in bytes, of all files in a folder, sorted by name.
pub(super) fn files(folder: &Path) -> Result<Vec<(String, u64)>> {
    let entries = fs::read_dir(folder).with_context(|| format!("reading {}", folder.display()))?;
    let mut files = entries
        .map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.metadata()?.len()))
        })
        .collect::<Result<Vec<_>>>()?;
    files.sort();
    Ok(files)
}
