//! Follows a path inside a root one component at a time. Every component is held open, so what is checked is what is found.

use std::{
    ffi::OsStr,
    io,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Component, Path, PathBuf},
};

use rustix::fs::{FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};

/// The most links that are followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The flags with which a component is opened: nothing is read or written, and a link is not followed.
pub(super) const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// A file or folder inside a root.
#[derive(Debug)]
pub struct Found {
    /// The file, which can be inspected and not read.
    pub file: OwnedFd,
    /// Its absolute path inside the root, without links.
    pub path: PathBuf,
}

/// Finds a file or folder inside a root, and passes each component to `check` with its path inside the root: the root itself, folders,
/// links, and the file. Links are followed inside the root.
pub fn walk(root: OwnedFd, path: &Path, check: impl Fn(&Path, &Stat) -> io::Result<()>) -> io::Result<Found> {
    check(Path::new("/"), &fstat(&root)?)?;
    let mut pending = parts(path);
    let mut inside: Vec<(PathBuf, OwnedFd)> = Vec::new();
    let mut links = 0;
    while let Some(part) = pending.pop() {
        if part == Path::new("..") {
            inside.pop();
            continue;
        }
        let file = openat(last(&inside, &root), &part, LOOK, Mode::empty())?;
        let stat = fstat(&file)?;
        check(&joined(&inside).join(&part), &stat)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            inside.push((part, file));
            continue;
        }
        links += 1;
        if links > MAX_LINKS {
            return Err(io::Error::other(format!("too many symbolic links in path {}", path.display())));
        }
        let target = readlinkat(&file, "", Vec::new())?;
        let target = Path::new(OsStr::from_bytes(target.as_bytes()));
        if target.is_absolute() {
            inside.clear();
        }
        pending.extend(parts(target));
    }
    let path = joined(&inside);
    Ok(Found { file: inside.pop().map_or(root, |(_, file)| file), path })
}

/// Returns the components of a path in reverse order, ready to be popped.
fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| PathBuf::from(part.as_os_str()))
        .rev()
        .collect()
}

fn last<'f>(inside: &'f [(PathBuf, OwnedFd)], root: &'f OwnedFd) -> BorrowedFd<'f> {
    inside.last().map_or(root.as_fd(), |(_, file)| file.as_fd())
}

fn joined(inside: &[(PathBuf, OwnedFd)]) -> PathBuf {
    Path::new("/").join(inside.iter().map(|(part, _)| part).collect::<PathBuf>())
}
