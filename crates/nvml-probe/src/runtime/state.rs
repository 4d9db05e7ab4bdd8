//! The files themselves: read, written, and remembered.

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
    files::{File, Text},
    record::Texts,
};

/// The extended attribute with a file's SELinux label: without it the runtime may not be let at its own configuration.
const LABEL: &str = "security.selinux";

/// The mode of a file that was not there before, whatever the process' mask.
const READABLE: u32 = 0o644;

/// More bytes than a label has.
const LONGEST_LABEL: usize = 4096;

/// A file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Reading.
    #[error("cannot read {}", .0.display())]
    Read(PathBuf, #[source] io::Error),
    /// Writing.
    #[error("cannot write {}", .0.display())]
    Write(PathBuf, #[source] io::Error),
    /// What is remembered is no JSON.
    #[error("cannot make sense of {}", .0.display())]
    Parse(PathBuf, #[source] serde_json::Error),
}

/// Reads a file; `None` where there is none.
///
/// # Errors
/// Where it is there and cannot be read as text.
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
/// Where one is there and cannot be read as text.
pub fn read_all<'p>(paths: impl IntoIterator<Item = &'p PathBuf>) -> Result<Texts, StateError> {
    paths.into_iter().map(|path| Ok((path.clone(), read(path)?))).collect()
}

/// Writes files, or takes them away.
///
/// # Errors
/// Where one cannot be written; those before it are.
pub fn write_all(texts: &Texts) -> Result<(), StateError> {
    texts.iter().try_for_each(|(path, text)| write(path, text.as_deref()))
}

/// Writes a file as a whole, or takes it away. Nobody sees half of it, and its owner, mode and SELinux label stay.
///
/// # Errors
/// Where it cannot be written.
pub fn write(path: &Path, text: Option<&str>) -> Result<(), StateError> {
    let failed = |error| StateError::Write(path.to_owned(), error);
    let Some(text) = text else {
        return match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(error)),
            _ => Ok(()),
        };
    };
    // A link stays one: what it points to is written.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let beside = target.with_extension("gpu-operator.new");
    fs::write(&beside, text)
        .and_then(|()| resemble(&beside, &target, LABEL))
        .and_then(|()| fs::File::open(&beside)?.sync_all())
        .and_then(|()| fs::rename(&beside, &target))
        .map_err(failed)
}

/// Gives a new file the owner, mode and label of the one whose place it takes, if there is one.
fn resemble(new: &Path, old: &Path, label: &str) -> io::Result<()> {
    let of_old = match fs::metadata(old) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return fs::set_permissions(new, fs::Permissions::from_mode(READABLE));
        }
        of_old => of_old?,
    };
    // The owner first: with another one a file loses some bits of its mode.
    chown(new, Some(of_old.uid()), Some(of_old.gid()))?;
    fs::set_permissions(new, of_old.permissions())?;
    let mut value = Vec::with_capacity(LONGEST_LABEL);
    match getxattr(old, label, rustix::buffer::spare_capacity(&mut value)) {
        Ok(_) => Ok(setxattr(new, label, &value, XattrFlags::empty())?),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// What was remembered under a name, if anything.
///
/// # Errors
/// Where it is there and cannot be understood.
pub fn recall<T: DeserializeOwned>(folder: &Path, name: &str) -> Result<Option<T>, StateError> {
    let path = folder.join(name);
    let text = read(&path)?;
    text.map(|text| serde_json::from_str(&text)).transpose().map_err(|error| StateError::Parse(path, error))
}

/// Remembers something under a name.
///
/// # Errors
/// Where it cannot be written.
pub fn remember(folder: &Path, name: &str, what: &impl Serialize) -> Result<(), StateError> {
    let path = folder.join(name);
    let text = serde_json::to_string_pretty(what).map_err(|error| StateError::Parse(path.clone(), error))?;
    write(&path, Some(&text))
}

/// Forgets what was remembered under a name.
///
/// # Errors
/// Where it is there and stays.
pub fn forget(folder: &Path, name: &str) -> Result<(), StateError> {
    write(&folder.join(name), None)
}

/// When the files were last written, whichever was last; `None` where there are none.
#[must_use]
pub fn newest(files: &[File]) -> Option<SystemTime> {
    files.iter().filter_map(|file| fs::metadata(&file.path).and_then(|file| file.modified()).ok()).max()
}

/// By what a change of the files is seen without reading them.
#[must_use]
pub fn glance(files: &[File]) -> Vec<Option<(u64, u64, i64, i64)>> {
    let of = |file: &File| fs::metadata(&file.path).ok().map(|it| (it.ino(), it.size(), it.mtime(), it.mtime_nsec()));
    files.iter().map(of).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_resembles_the_one_whose_place_it_takes() {
        // On a file system that has attributes, which that of temporary files need not.
        let beside = std::env::current_exe().unwrap();
        let folder = tempfile::tempdir_in(beside.parent().unwrap()).unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&new, "new").unwrap();
        let mode = || fs::metadata(&new).unwrap().permissions().mode() & 0o7777;
        resemble(&new, &old, LABEL).unwrap();
        assert_eq!(mode(), READABLE, "there is nothing to resemble");

        fs::write(&old, "old").unwrap();
        fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
        // Only a system with SELinux, or root, may write a label itself.
        resemble(&new, &old, "user.label").unwrap();
        setxattr(&old, "user.label", b"system_u:object_r:etc_t:s0\0", XattrFlags::empty()).unwrap();
        resemble(&new, &old, "user.label").unwrap();
        assert_eq!(mode(), 0o640);
        let mut label = Vec::with_capacity(100);
        getxattr(&new, "user.label", rustix::buffer::spare_capacity(&mut label)).unwrap();
        assert_eq!(label, b"system_u:object_r:etc_t:s0\0");
    }
}
