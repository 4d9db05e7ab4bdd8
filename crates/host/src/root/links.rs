//! What every way of following symbolic links inside a root has in common.

use std::{
    io,
    path::{Component, Path, PathBuf},
};

/// The most links that are followed for one path, as in the kernel.
pub(super) const MAX_LINKS: usize = 40;

/// Returns the error on a path with more links.
pub(super) fn too_many_links(path: &Path) -> io::Error {
    io::Error::other(format!("too many symbolic links in path {}", path.display()))
}

/// Returns the components of a path in reverse order, ready to be popped.
pub(super) fn parts(path: &Path) -> Vec<PathBuf> {
    path.components()
        .filter(|part| matches!(part, Component::Normal(_) | Component::ParentDir))
        .map(|part| PathBuf::from(part.as_os_str()))
        .rev()
        .collect()
}
