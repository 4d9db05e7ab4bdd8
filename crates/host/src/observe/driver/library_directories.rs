//! The folders of a root that may hold a driver's libraries: those that installers are known to use, and those that the root's
//! dynamic linker searches, from its cache `/etc/ld.so.cache`.
//!
//! The layout of the cache is that of glibc's `dl-cache.h`: the format `glibc-ld.so.cache1.1` of glibc 2.2 and later, either
//! alone or after the older format, which ldconfig prepended up to glibc 2.31. All numbers are little-endian, as on every
//! processor that the probe supports.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

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
/// Folders whose subfolders with these prefixes hold the libraries: one for each branch in Ubuntu's packages up to
/// 18.04, and one for each but the current branch in Debian's.
const NUMBERED: [(&str, &str); 3] =
    [("usr/lib", "nvidia-"), ("usr/lib/x86_64-linux-gnu/nvidia", ""), ("usr/lib/aarch64-linux-gnu/nvidia", "")];

/// Returns the folders of a root in which a driver's libraries may be, each once and relative to the root, the most
/// likely first: those where the linker's cache lists `library`, the known ones, and those of the linker's
/// configuration.
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
    for path in paths(&cache, library).into_iter().take(MAX_FOLDERS) {
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

/// The first bytes of the file, including its version.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0";
/// The sizes of the old format's header and entries.
const OLD_SIZES: (usize, usize) = (16, 12);
/// The sizes of the header and of an entry: flags, key, value, OS version, hardware capabilities.
const SIZES: (usize, usize) = (48, 24);
/// The most entries that are read; a desktop system has a few thousand.
const MAX_ENTRIES: usize = 65_536;
const LONGEST: usize = 4096;
/// The part of an entry's flags that names the library's architecture, and its values for x86-64 and arm64. The probe
/// cannot load 32-bit libraries.
const KIND: u32 = 0xff00;
const KINDS: [u32; 2] = [0x0300, 0x0a00];

/// Returns the paths of the 64-bit libraries whose names start with `prefix`, in the order of the cache. Damaged parts
/// are skipped: the cache is only one of the sources for library locations.
pub fn paths<'c>(cache: &'c [u8], prefix: &str) -> Vec<&'c str> {
    let Some(cache) = newer(cache) else { return Vec::new() };
    let count = number(cache, MAGIC.len()).unwrap_or_default().min(MAX_ENTRIES);
    let entries = (0..count).map(|index| SIZES.0 + index * SIZES.1);
    let path = |at: usize| {
        let flags = u32::try_from(number(cache, at)?).ok()?;
        let name = text(cache, number(cache, at + 4)?)?;
        let wanted = KINDS.contains(&(flags & KIND)) && name.starts_with(prefix);
        text(cache, number(cache, at + 8)?).filter(|path| wanted && path.starts_with('/'))
    };
    entries.filter_map(path).collect()
}

/// Returns the part in the newer format; offsets of strings count from its start.
fn newer(cache: &[u8]) -> Option<&[u8]> {
    if cache.starts_with(MAGIC) {
        return Some(cache);
    }
    cache.strip_prefix(OLD_MAGIC)?;
    let entries = number(cache, OLD_SIZES.0 - 4)?.checked_mul(OLD_SIZES.1)?;
    let begin = entries.checked_add(OLD_SIZES.0)?.checked_next_multiple_of(8)?;
    cache.get(begin..).filter(|newer| newer.starts_with(MAGIC))
}

fn number(cache: &[u8], at: usize) -> Option<usize> {
    let bytes = cache.get(at..at.checked_add(4)?)?;
    usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

fn text(cache: &[u8], at: usize) -> Option<&str> {
    let rest = cache.get(at..)?;
    let end = rest.iter().take(LONGEST).position(|byte| *byte == 0)?;
    std::str::from_utf8(rest.get(..end)?).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Builds a cache of the newer format with these libraries: flags, name, path.
    fn cache(libraries: &[(u32, &str, &str)]) -> Vec<u8> {
        let (mut entries, mut strings) = (Vec::new(), Vec::new());
        let begin = SIZES.0 + libraries.len() * SIZES.1;
        let mut string = |text: &str| {
            let at = u32::try_from(begin + strings.len()).unwrap();
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at.to_le_bytes()
        };
        for (flags, name, path) in libraries {
            entries.extend_from_slice(&flags.to_le_bytes());
            entries.extend_from_slice(&string(name));
            entries.extend_from_slice(&string(path));
            entries.extend_from_slice(&[0; 12]);
        }
        let mut cache = MAGIC.to_vec();
        cache.extend_from_slice(&u32::try_from(libraries.len()).unwrap().to_le_bytes());
        cache.extend_from_slice(&u32::try_from(strings.len()).unwrap().to_le_bytes());
        cache.resize(SIZES.0, 0);
        cache.extend(entries);
        cache.extend(strings);
        cache
    }

    const X86_64: u32 = 0x0303;

    #[test]
    fn libraries_of_64_bits_are_found_by_the_prefix_of_their_names() {
        let nvml = "libnvidia-ml.so.1";
        let libraries = [
            (X86_64, "libc.so.6", "/usr/lib64/libc.so.6"),
            (X86_64, nvml, "/usr/lib64/nvidia/libnvidia-ml.so.1"),
            (0x0003, nvml, "/usr/lib/nvidia/libnvidia-ml.so.1"),
            (0x0a03, nvml, "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"),
            (X86_64, nvml, "relative/libnvidia-ml.so.1"),
        ];
        let found = ["/usr/lib64/nvidia/libnvidia-ml.so.1", "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1"];
        let newer = cache(&libraries);
        assert_eq!(paths(&newer, "libnvidia-ml.so."), found);
        // The same after the older format, with one entry and with two: the newer one starts at a multiple of eight.
        for entries in [1_u32, 2] {
            let mut both = OLD_MAGIC.to_vec();
            both.push(0);
            both.extend_from_slice(&entries.to_le_bytes());
            both.resize((16 + 12 * entries as usize).next_multiple_of(8), 0);
            both.extend_from_slice(&newer);
            assert_eq!(paths(&both, "libnvidia-ml.so."), found, "{entries}");
        }
    }

    #[test]
    fn a_file_that_is_not_a_cache_or_is_cut_off_lists_nothing() {
        let whole = cache(&[(X86_64, "libnvidia-ml.so.1", "/usr/lib64/libnvidia-ml.so.1")]);
        assert_eq!(paths(&whole, "libnvidia-ml.so.").len(), 1);
        for end in 0..whole.len() {
            assert!(paths(&whole[..end], "libnvidia-ml.so.").is_empty(), "the first {end} bytes");
        }
        assert!(paths(b"ld.so-1.7.0\0\xff\xff\xff\xff", "lib").is_empty());
    }

    proptest! {
        #[test]
        fn no_input_makes_the_probe_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            begin in prop::sample::select(vec![&b""[..], MAGIC, OLD_MAGIC]),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        ) {
            let _ = paths(&[begin, &bytes].concat(), "lib");
            let mut damaged = cache(&[(X86_64, "liba.so.1", "/a"), (X86_64, "libb.so.1", "/b")]);
            for (at, byte) in flips {
                let at = at.index(damaged.len());
                damaged[at] = byte;
            }
            let _ = paths(&damaged, "lib");
        }
    }
}
