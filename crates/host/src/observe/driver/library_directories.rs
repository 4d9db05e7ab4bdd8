//! The folders of a root that may hold a driver's libraries: those that the root's dynamic linker searches, and those
//! that installers are known to use.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use super::ld_cache;
use crate::root::{HostRoot, present};

const CACHE: &str = "etc/ld.so.cache";
/// A desktop's cache has a few hundred kilobytes.
const CACHE_BYTES: u64 = 8 * 1024 * 1024;
const CONFIGURATION: &str = "etc/ld.so.conf";
/// The most files of the linker's configuration that are read, and the most folders that they may name.
const MAX_FOLDERS: usize = 64;

/// Folders that hold a driver's libraries, by installer: first NVIDIA's `.run` file, most packages and Google's
/// installers, then the packages of RHEL 7 and Debian, WSL and NixOS. Appliances list their folders in the
/// linker's configuration.
const KNOWN: [&str; 12] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib64/nvidia",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib",
    "lib",
    "usr/lib/nvidia",
    "usr/lib/wsl/lib",
    "run/opengl-driver/lib",
];
/// Folders whose subfolders with these prefixes hold the libraries: Ubuntu's packages up to 18.04, one for each branch,
/// and Debian's packages of branches other than the current one.
const NUMBERED: [(&str, &str); 3] =
    [("usr/lib", "nvidia-"), ("usr/lib/x86_64-linux-gnu/nvidia", ""), ("usr/lib/aarch64-linux-gnu/nvidia", "")];

/// Returns the folders of a root in which a driver's libraries may be, relative to the root and the most likely first:
/// those where the dynamic linker's cache lists `library`, the known ones, and those of the linker's configuration.
/// Each folder exists and is listed once.
pub fn of(root: &HostRoot, library: &str) -> io::Result<Vec<PathBuf>> {
    let mut all = cached(root, library)?;
    all.extend(KNOWN.map(PathBuf::from));
    for (parent, prefix) in NUMBERED {
        let names = root.names(parent)?;
        all.extend(names.iter().filter(|name| name.starts_with(prefix)).map(|name| Path::new(parent).join(name)));
    }
    all.extend(configured(root)?);
    // The root itself may be the folder that holds them.
    all.push(PathBuf::new());
    // On most systems several of them are the same: /lib64 is a link to /usr/lib64.
    let mut real = BTreeSet::new();
    Ok(all.into_iter().filter(|folder| root.resolve(folder).is_ok_and(|folder| real.insert(folder))).collect())
}

/// Returns the folders of the libraries in the cache, and those that the libraries link to: Debian's links lead to the
/// folder of the branch that the system has selected.
fn cached(root: &HostRoot, library: &str) -> io::Result<Vec<PathBuf>> {
    let Some(cache) = present(root.bytes(CACHE, CACHE_BYTES))? else { return Ok(Vec::new()) };
    let mut folders = Vec::new();
    for path in ld_cache::paths(&cache, library).into_iter().take(MAX_FOLDERS) {
        let real = root.resolve(path).ok();
        let real = real.as_deref().and_then(|real| real.strip_prefix(root.as_path()).ok());
        folders.extend([Some(Path::new(path)), real].into_iter().flatten().filter_map(relative));
    }
    Ok(folders)
}

/// Returns the folder of a file, relative to the root.
fn relative(path: &Path) -> Option<PathBuf> {
    Some(path.strip_prefix("/").unwrap_or(path).parent()?.to_owned())
}

/// Returns the folders named in the linker's configuration, from which its cache is built.
fn configured(root: &HostRoot) -> io::Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from(CONFIGURATION)];
    let (mut folders, mut next) = (Vec::new(), 0);
    while let Some(file) = files.get(next).cloned() {
        next += 1;
        let text = present(root.bytes(&file, 64 * 1024))?.unwrap_or_default();
        for line in String::from_utf8_lossy(&text).lines() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if let Some(patterns) = line.strip_prefix("include").filter(|rest| rest.starts_with([' ', '\t'])) {
                for pattern in patterns.split_whitespace() {
                    files.extend(included(root, &file, pattern)?);
                }
                files.truncate(MAX_FOLDERS);
            } else if let Some(folder) = line.strip_prefix('/').filter(|_| folders.len() < MAX_FOLDERS) {
                folders.push(PathBuf::from(folder.trim_end_matches('/')));
            }
        }
    }
    Ok(folders)
}

/// Returns the files that an `include` names. Its last part may contain one asterisk.
fn included(root: &HostRoot, file: &Path, pattern: &str) -> io::Result<Vec<PathBuf>> {
    let pattern = match pattern.strip_prefix('/') {
        Some(absolute) => PathBuf::from(absolute),
        None => file.parent().unwrap_or(Path::new("")).join(pattern),
    };
    let (Some(folder), Some(name)) = (pattern.parent(), pattern.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let Some((begin, end)) = name.split_once('*') else { return Ok(vec![pattern]) };
    let fits = |name: &&String| name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end);
    Ok(root.names(folder)?.iter().filter(fits).map(|name| folder.join(name)).collect())
}
