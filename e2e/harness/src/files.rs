//! Small helpers for files.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

/// Creates an empty file, and the folders above it.
pub fn create(path: &Path) -> Result<fs::File> {
    create_parent(path)?;
    fs::File::create(path).with_context(|| format!("writing {}", path.display()))
}

/// Opens a file for appending; creates it, and the folders above it, if needed.
pub fn append(path: &Path) -> Result<fs::File> {
    create_parent(path)?;
    fs::File::options().create(true).append(true).open(path).with_context(|| format!("writing {}", path.display()))
}

/// Writes a file, and creates the folders above it.
pub fn write(path: &Path, content: &str) -> Result<()> {
    create_parent(path)?;
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}

/// Copies a file, or a folder with all that is in it, and creates the folders above the copy.
pub fn copy(from: &Path, to: &Path) -> Result<()> {
    create_parent(to)?;
    if from.is_dir() {
        for entry in fs::read_dir(from)? {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()))?;
        }
        return Ok(());
    }
    fs::copy(from, to).with_context(|| format!("copying {}", from.display()))?;
    Ok(())
}

/// Adds the files of a folder to a hash, with their paths below `root`.
pub fn hash_tree(root: &Path, dir: &Path, hash: &mut Sha256) -> Result<()> {
    let mut entries: Vec<PathBuf> = fs::read_dir(dir)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    entries.sort();
    for path in entries {
        if path.is_dir() {
            hash_tree(root, &path, hash)?;
        } else {
            hash.update(path.strip_prefix(root)?.as_os_str().as_encoded_bytes());
            hash.update(fs::read(&path)?);
        }
    }
    Ok(())
}

fn create_parent(path: &Path) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    Ok(())
}

/// Removes a folder with all that is in it, if it exists.
pub fn remove_tree(path: &Path) -> Result<()> {
    fs::remove_dir_all(path).or_else(ignore_missing).with_context(|| format!("removing {}", path.display()))
}

/// Turns the error of removing a path that does not exist into success.
pub fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns the last `bytes` of a file as text; nothing if the file cannot be read.
pub fn tail(path: &Path, bytes: usize) -> String {
    let content = fs::read(path).unwrap_or_default();
    let from = content.len().saturating_sub(bytes);
    String::from_utf8_lossy(&content[from..]).into_owned()
}

/// Returns bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
