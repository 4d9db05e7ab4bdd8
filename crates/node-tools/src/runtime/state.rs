//! Reads and writes the configuration files and the probe's own state.

use std::{
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown},
    path::{Path, PathBuf},
    time::SystemTime,
};

use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
};
use serde::{Serialize, de::DeserializeOwned};

use super::config_files::{ConfigFile, Text, Texts};

/// The extended attribute with a file's SELinux label, without which the runtime may be denied its own configuration.
const LABEL: &str = "security.selinux";

/// Who may read a new file, independent of the process' umask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Root only: the file may contain what a runtime's configuration contains, such as the credentials of a registry.
    Root,
    /// Everyone: gates read the file without privileges.
    Everyone,
}

impl Readers {
    const fn mode(self) -> u32 {
        match self {
            Self::Root => 0o600,
            Self::Everyone => 0o644,
        }
    }
}

const PRIVATE_FOLDER: u32 = 0o700;

const LONGEST_LABEL: usize = 4096;

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    #[error("cannot parse {}", .0.display())]
    Parse(PathBuf, #[source] serde_json::Error),
}

/// `None` if it does not exist.
pub fn read(path: &Path) -> Result<Text, StateError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(StateError::Read(path.to_owned(), error)),
    }
}

pub fn read_all<'p>(paths: impl IntoIterator<Item = &'p PathBuf>) -> Result<Texts, StateError> {
    paths.into_iter().map(|path| Ok((path.clone(), read(path)?))).collect()
}

/// Writes or removes configuration files. Where there is no file yet, only root may read the new one, because its content comes from a
/// file whose mode is not known.
pub fn write_all(texts: &Texts) -> Result<(), StateError> {
    texts.iter().try_for_each(|(path, text)| match text {
        Some(text) => write(path, text, Readers::Root.mode()),
        None => delete(path),
    })
}

/// Writes a file in place of another one, with the mode of the latter, and removes the latter.
pub fn replace(path: &Path, text: &str, replaced: &Path) -> Result<(), StateError> {
    let mode = fs::metadata(replaced).map_err(|error| StateError::Read(replaced.to_owned(), error))?.mode();
    write(path, text, mode & 0o777)?;
    delete(replaced)
}

fn delete(path: &Path) -> Result<(), StateError> {
    unlink(path).map_err(|error| StateError::Write(path.to_owned(), error))
}

fn unlink(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Writes a file atomically. The owner, mode and SELinux label of an existing file are kept; a new file gets `mode`.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), StateError> {
    let failed = |error| StateError::Write(path.to_owned(), error);
    // A link stays a link: its target is written.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    write_beside(&target, text, |new| copy_attributes(new, &target, LABEL, mode)).map_err(failed)
}

/// Writes a file atomically. Only root may read the new file until `finish` has given it its mode.
fn write_beside(target: &Path, text: &str, finish: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
    let beside = target.with_extension("gpu-operator.new");
    let mut file = create(&beside)?;
    file.write_all(text.as_bytes())?;
    finish(&beside)?;
    file.sync_all()?;
    fs::rename(&beside, target)
}

/// Creates a file that only root may read. One that an interrupted write has left, which others may have open, is removed.
fn create(path: &Path) -> io::Result<File> {
    unlink(path)?;
    OpenOptions::new().write(true).create_new(true).mode(Readers::Root.mode()).open(path)
}

/// Gives a new file the owner, mode and label of the file that it replaces, or `mode` if there is none.
fn copy_attributes(new: &Path, old: &Path, label: &str, mode: u32) -> io::Result<()> {
    let of_old = match fs::metadata(old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fs::set_permissions(new, Permissions::from_mode(mode));
        }
        of_old => of_old?,
    };
    // The owner comes first: changing it clears some bits of the mode.
    chown(new, Some(of_old.uid()), Some(of_old.gid()))?;
    fs::set_permissions(new, of_old.permissions())?;
    copy_label(new, old, label)
}

fn copy_label(new: &Path, old: &Path, label: &str) -> io::Result<()> {
    let mut value = Vec::with_capacity(LONGEST_LABEL);
    match getxattr(old, label, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => Ok(setxattr(new, label, &value, XattrFlags::empty())?),
        Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

pub fn load<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, StateError> {
    let path = folder.join(name);
    let text = read(&path)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| StateError::Parse(path, error))
}

/// Stores a value under a name. A file or folder of an earlier version that others may read is narrowed.
pub fn store(folder: &Path, name: &str, what: &impl Serialize, readers: Readers) -> Result<(), StateError> {
    let path = folder.join(name);
    let failed = |error| StateError::Write(path.clone(), error);
    let text = serde_json::to_string_pretty(what).map_err(|error| StateError::Parse(path.clone(), error))?;
    match readers {
        Readers::Root => make_private(folder).map_err(failed)?,
        Readers::Everyone => fs::create_dir_all(folder).map_err(failed)?,
    }
    let finish = |new: &Path| {
        fs::set_permissions(new, Permissions::from_mode(readers.mode()))?;
        copy_label(new, &path, LABEL)
    };
    write_beside(&path, &text, finish).map_err(failed)
}

/// Creates a folder that only root may enter. Kubelet creates folders that everyone may enter.
fn make_private(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(PRIVATE_FOLDER).create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(PRIVATE_FOLDER))
}

pub fn remove(folder: &Path, name: &str) -> Result<(), StateError> {
    delete(&folder.join(name))
}

/// Returns when the files were last written; `None` if there are none.
pub fn newest(files: &[ConfigFile]) -> Option<SystemTime> {
    files.iter().filter_map(|file| fs::metadata(&file.path).and_then(|file| file.modified()).ok()).max()
}

/// Returns the metadata by which a change of the files is detected without reading them.
pub fn metadata_snapshot(files: &[ConfigFile]) -> Vec<Option<(u64, u64, i64, i64)>> {
    let of =
        |file: &ConfigFile| fs::metadata(&file.path).ok().map(|it| (it.ino(), it.size(), it.mtime(), it.mtime_nsec()));
    files.iter().map(of).collect()
}

#[cfg(test)]
mod tests;
