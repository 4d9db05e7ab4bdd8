//! Reads and writes the configuration files and the probe's own state.

use std::{
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};
use serde::{Serialize, de::DeserializeOwned};

use super::{
    config_files::ConfigFile,
    texts::{Text, Texts},
};

/// The extended attribute with a file's SELinux label, without which the runtime may be denied its own configuration.
const LABEL: &str = "security.selinux";

/// The mode of a new file, independent of the process' umask.
const READABLE: u32 = 0o644;

/// The longest label that is read.
const LONGEST_LABEL: usize = 4096;

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file cannot be read.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// The file cannot be written.
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// The stored state is not valid JSON.
    #[error("cannot parse {}", .0.display())]
    Parse(PathBuf, #[source] serde_json::Error),
}

/// Reads a file; `None` if it does not exist.
///
/// # Errors
/// Returns an error if it exists and cannot be read as text.
pub fn read(path: &Path) -> Result<Text, StateError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(StateError::Read(path.to_owned(), error)),
    }
}

/// Reads all files.
///
/// # Errors
/// Returns an error if one exists and cannot be read as text.
pub fn read_all<'p>(paths: impl IntoIterator<Item = &'p PathBuf>) -> Result<Texts, StateError> {
    paths.into_iter().map(|path| Ok((path.clone(), read(path)?))).collect()
}

/// Writes or removes files.
///
/// # Errors
/// Returns an error if one cannot be written; those before it are written.
pub fn write_all(texts: &Texts) -> Result<(), StateError> {
    texts.iter().try_for_each(|(path, text)| write(path, text.as_deref()))
}

/// Writes a file atomically, or removes it. Its owner, mode and SELinux label are kept.
///
/// # Errors
/// Returns an error if it cannot be written.
pub fn write(path: &Path, text: Option<&str>) -> Result<(), StateError> {
    let failed = |error| StateError::Write(path.to_owned(), error);
    let Some(text) = text else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
    };
    // A link stays a link: its target is written.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let beside = target.with_extension("gpu-operator.new");
    fs::write(&beside, text)
        .and_then(|()| copy_attributes(&beside, &target, LABEL))
        .and_then(|()| fs::File::open(&beside)?.sync_all())
        .and_then(|()| fs::rename(&beside, &target))
        .map_err(failed)
}

/// Gives a new file the owner, mode and label of the file that it replaces, if there is one.
fn copy_attributes(new: &Path, old: &Path, label: &str) -> io::Result<()> {
    let of_old = match fs::metadata(old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fs::set_permissions(new, fs::Permissions::from_mode(READABLE));
        }
        of_old => of_old?,
    };
    // The owner comes first: changing it clears some bits of the mode.
    chown(new, Some(of_old.uid()), Some(of_old.gid()))?;
    fs::set_permissions(new, of_old.permissions())?;
    let mut value = Vec::with_capacity(LONGEST_LABEL);
    match getxattr(old, label, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => Ok(setxattr(new, label, &value, XattrFlags::empty())?),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Loads a stored value, if there is one.
///
/// # Errors
/// Returns an error if it exists and cannot be parsed.
pub fn load<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, StateError> {
    let path = folder.join(name);
    let text = read(&path)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| StateError::Parse(path, error))
}

/// Stores a value under a name.
///
/// # Errors
/// Returns an error if it cannot be written.
pub fn store(folder: &Path, name: &str, what: &impl Serialize) -> Result<(), StateError> {
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(what).map_err(|error| StateError::Parse(path.clone(), error))?;
    write(&path, Some(&text))
}

/// Removes a stored value.
///
/// # Errors
/// Returns an error if it exists and cannot be removed.
pub fn remove(folder: &Path, name: &str) -> Result<(), StateError> {
    write(&folder.join(name), None)
}

/// Returns when the files were last written; `None` if there are none.
#[must_use]
pub fn newest(files: &[ConfigFile]) -> Option<SystemTime> {
    files.iter().filter_map(|file| fs::metadata(&file.path).and_then(|file| file.modified()).ok()).max()
}

/// Returns the metadata by which a change of the files is detected without reading them.
#[must_use]
pub fn metadata_snapshot(files: &[ConfigFile]) -> Vec<Option<(u64, u64, i64, i64)>> {
    let of =
        |file: &ConfigFile| fs::metadata(&file.path).ok().map(|it| (it.ino(), it.size(), it.mtime(), it.mtime_nsec()));
    files.iter().map(of).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_gets_the_attributes_of_the_file_that_it_replaces() {
        // On a file system with extended attributes, which the one for temporary files may lack.
        let beside = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&new, "new").unwrap();
        let mode = || fs::metadata(&new).unwrap().permissions().mode() & 0o7777;
        copy_attributes(&new, &old, LABEL).unwrap();
        assert_eq!(mode(), READABLE, "there is no old file");

        fs::write(&old, "old").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        // Writing the SELinux label itself requires a system with SELinux, or root.
        copy_attributes(&new, &old, "user.label").unwrap();
        setxattr(&old, "user.label", b"system_u:object_r:etc_t:s0\0", XattrFlags::empty()).unwrap();
        copy_attributes(&new, &old, "user.label").unwrap();
        assert_eq!(mode(), 0o640);
        let mut label = Vec::with_capacity(100);
        getxattr(&new, "user.label", rustix::buffer::spare_capacity(&mut label)).unwrap();
        assert_eq!(label, b"system_u:object_r:etc_t:s0\0");
    }
}
