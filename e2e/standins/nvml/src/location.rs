//! The path from which this library was loaded, which has the driver root and the version.
#![allow(unsafe_code)] // dladdr is the only way for a library to learn its own path

use std::{
    env,
    ffi::{CStr, OsStr, c_void},
    mem::MaybeUninit,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The environment variable with the driver root, for a library outside a driver root, as in unit tests.
const ROOT_VARIABLE: &str = "STANDIN_NVML_ROOT";

/// Returns the path of the library, the driver root, and the version in the library's file name, if it has one.
pub(crate) fn find() -> (PathBuf, PathBuf, Option<String>) {
    let own = own_path().unwrap_or_default();
    // The name that was opened is usually the link libnvidia-ml.so.1; the version is in the name of the file behind it,
    // and if that file is in another root, the whole driver is.
    let real = own.canonicalize().unwrap_or_else(|_| own.clone());
    let version = version_of(&real);
    let root = env::var_os(ROOT_VARIABLE).map_or_else(|| root_of(&real), PathBuf::from);
    (own, root, version)
}

/// `<root>/usr/lib/<architecture>/<file>`, `<root>/usr/lib64/<file>` and `<root>/lib64/<file>` are in the root
/// `<root>`.
fn root_of(library: &Path) -> PathBuf {
    let folders: Vec<&Path> = library.ancestors().skip(1).collect();
    let is = |folder: &Path, names: &[&str]| folder.file_name().is_some_and(|name| names.iter().any(|n| name == *n));
    for folder in &folders {
        if is(folder, &["lib", "lib64"]) {
            let above = folder.parent().unwrap_or(Path::new("/"));
            let root = if is(above, &["usr"]) { above.parent() } else { Some(above) };
            return root.unwrap_or(Path::new("/")).to_path_buf();
        }
    }
    PathBuf::from("/")
}

/// Returns the part of the name after `libnvidia-ml.so.` or `libcuda.so.`, if it is a driver version.
fn version_of(library: &Path) -> Option<String> {
    let name = library.file_name()?.to_str()?;
    let version = ["libnvidia-ml.so.", "libcuda.so."].iter().find_map(|prefix| name.strip_prefix(prefix))?;
    version.contains('.').then(|| version.to_owned())
}

fn own_path() -> Option<PathBuf> {
    let mut found = MaybeUninit::<libc::Dl_info>::zeroed();
    let here = own_path as fn() -> Option<PathBuf> as *const c_void;
    // SAFETY: `here` is an address within this library and `found` is valid for dladdr's result.
    if unsafe { libc::dladdr(here, found.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: dladdr succeeded, and the memory was zeroed before, so that every field is initialised.
    let name = unsafe { found.assume_init() }.dli_fname;
    if name.is_null() {
        return None;
    }
    // SAFETY: dladdr returned a NUL-terminated string of the dynamic loader, which exists as long as this library is
    // loaded.
    let name = unsafe { CStr::from_ptr(name) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}
