//! Writes files from an init container's arguments for the containers after it, so that no `ConfigMap` is needed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The file cannot be written for the next container.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {0}")]
pub struct WriteFileError(PathBuf, #[source] io::Error);

/// Writes a file, replacing an existing one.
pub fn write(path: &Path, text: &str) -> Result<(), WriteFileError> {
    fs::write(path, text).map_err(|source| WriteFileError(path.to_owned(), source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_written_and_an_older_one_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nvidia.json");
        write(&path, "old and longer").unwrap();
        write(&path, "{}").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "{}");
        let error = write(&folder.path().join("no/such"), "{}").unwrap_err();
        assert!(error.to_string().contains("no/such"), "{error}");
    }
}
