//! The host's file system as mounted in the container of this program, where links refer to the host's paths.
//!
//! The kernel resolves all links inside the root, in one step with opening, so that no component can be replaced in between.
//! Where it cannot, a path is followed one component at a time, and every component is held open.

use std::{
    ffi::OsStr,
    fs::{self, File, OpenOptions},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, Stat, fstat, open, openat, openat2, readlinkat},
    io::Errno,
};

/// The most that is read of a file: all files of interest have a few lines.
const MAX_BYTES: u64 = 64 * 1024;

/// A directory that is the root of a file system of its own: the host's, or a driver container's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl HostRoot {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the root's path for this process.
    pub fn as_path(&self) -> &Path {
        &self.0
    }

    /// Returns the path of a file of that root for this process, with every link resolved inside the root.
    ///
    /// The host's links refer to the host's paths: resolved by the kernel, an absolute link would lead into the probe's
    /// own image, and a mount meant for reading one directory could be redirected to another. A component may be replaced by the time
    /// the path is used: what is only inspected or read is found by the other functions, which hold it open.
    pub fn resolve(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let found = walk(open_root(&self.0)?, path.as_ref(), |_, _| Ok(()))?;
        Ok(self.0.join(found.path.strip_prefix("/").unwrap_or(&found.path)))
    }

    /// Follows a link.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<fs::Metadata> {
        File::from(find(&self.0, path.as_ref())?).metadata()
    }

    /// Returns the text of a small file of that root, trimmed.
    pub fn read(&self, path: impl AsRef<Path>) -> io::Result<String> {
        let mut text = String::new();
        read_regular(&find(&self.0, path.as_ref())?)?.take(MAX_BYTES).read_to_string(&mut text)?;
        Ok(text.trim().to_owned())
    }

    pub fn bytes(&self, path: impl AsRef<Path>, most: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        read_regular(&find(&self.0, path.as_ref())?)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// As [`Self::read`], but returns `None` for a file that does not exist or is removed meanwhile.
    pub fn read_if_present(&self, path: impl AsRef<Path>) -> io::Result<Option<String>> {
        present(self.read(path))
    }

    /// Returns the sorted names in a directory of that root; empty if it does not exist.
    pub fn names(&self, path: impl AsRef<Path>) -> io::Result<Vec<String>> {
        let Some(directory) = present(find(&self.0, path.as_ref()))? else {
            return Ok(Vec::new());
        };
        let Some(entries) = present(fs::read_dir(by_descriptor(&directory)))? else {
            return Ok(Vec::new());
        };
        let mut names = Vec::new();
        for entry in entries {
            if let Ok(name) = entry?.file_name().into_string() {
                names.push(name);
            }
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// Turns absence into `None`. A device or module that disappears while it is read is absent as well.
pub fn present<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
                || error.raw_os_error() == Some(nix::libc::ENODEV) =>
        {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resolver {
    /// By `openat2`, which Linux has since 5.6.
    Kernel,
    /// One component at a time.
    Walk,
}

pub(crate) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Finds a file or folder inside a root. What is returned can be inspected and not read.
fn find(root: &Path, path: &Path) -> io::Result<OwnedFd> {
    match find_by(Resolver::Kernel, root, path) {
        // An older kernel has no openat2, some container runtimes deny system calls that they do not know, and the kernel gives up
        // while folders are being renamed.
        Err(error)
            if [Errno::NOSYS, Errno::PERM, Errno::AGAIN]
                .map(Errno::raw_os_error)
                .map(Some)
                .contains(&error.raw_os_error()) =>
        {
            find_by(Resolver::Walk, root, path)
        }
        found => found,
    }
}

fn find_by(resolver: Resolver, root: &Path, path: &Path) -> io::Result<OwnedFd> {
    let root = open_root(root)?;
    match resolver {
        Resolver::Kernel => {
            let path = if path.as_os_str().is_empty() { Path::new("/") } else { path };
            let flags = OFlags::PATH | OFlags::CLOEXEC;
            Ok(openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS)?)
        }
        Resolver::Walk => Ok(walk(root, path, |_, _| Ok(()))?.file),
    }
}

/// Opens what was found for reading if it is a regular file. Opening anything else could block, as a FIFO does, or have an effect, as
/// devices do.
fn read_regular(found: &OwnedFd) -> io::Result<File> {
    match FileType::from_raw_mode(fstat(found)?.st_mode) {
        FileType::RegularFile => {}
        other => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} instead of a regular file", file_type_name(other)),
            ));
        }
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(by_descriptor(found))
}

/// Returns the path by which this process reopens a file that it holds, even if another one is at the file's own path
/// by now.
fn by_descriptor(found: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

pub(crate) fn file_type_name(kind: FileType) -> &'static str {
    match kind {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Unknown => "a file of unknown type",
    }
}

/// The most links that are followed for one path, as in the kernel.
const MAX_LINKS: usize = 40;

/// The flags with which a component is opened: nothing is read or written, and a link is not followed.
const LOOK: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

#[derive(Debug)]
pub(crate) struct Found {
    /// The file, which can be inspected and not read.
    pub file: OwnedFd,
    /// Absolute inside the root, without links.
    pub path: PathBuf,
}

/// Finds a file or folder inside a root, and passes each component to `check` with its path inside the root: the root itself, folders,
/// links, and the file. Links are followed inside the root.
pub(crate) fn walk(root: OwnedFd, path: &Path, check: impl Fn(&Path, &Stat) -> io::Result<()>) -> io::Result<Found> {
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

#[cfg(test)]
mod tests;
