//! Opens files inside a root. The kernel resolves all links inside the root, in one step with opening, so that no component can be
//! replaced in between.

use std::{
    fs::{File, OpenOptions},
    io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2},
    io::Errno,
};

use super::walk::walk;

/// How a file is found inside a root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Resolver {
    /// By `openat2`, which Linux has since 5.6.
    Kernel,
    /// One component at a time.
    Walk,
}

/// Opens a folder as the root of paths.
pub fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Finds a file or folder inside a root. What is returned can be inspected and not read.
pub(super) fn find(root: &Path, path: &Path) -> io::Result<OwnedFd> {
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

pub(super) fn find_by(resolver: Resolver, root: &Path, path: &Path) -> io::Result<OwnedFd> {
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
pub(super) fn read_regular(found: &OwnedFd) -> io::Result<File> {
    match FileType::from_raw_mode(fstat(found)?.st_mode) {
        FileType::RegularFile => {}
        other => {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} instead of a regular file", name(other)),
            ));
        }
    }
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(by_descriptor(found))
}

/// Returns the path by which this process reopens a file that it holds, whatever is at the file's own path by now.
pub(super) fn by_descriptor(found: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()))
}

/// Returns what a message calls a type of file.
pub fn name(kind: FileType) -> &'static str {
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
