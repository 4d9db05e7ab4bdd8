//! The replacement of the stand-in's folder in containers to which NVIDIA's own programs have added the driver. These
//! programs find a driver's files by their names and do not add `etc/standin`, so a file that is named like one of the
//! driver's libraries is next to this library. It serves as the folder's lock, and contains the text of `gpus.json`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

/// The file's name before the driver's version.
pub(crate) const NAME: &str = "libnvidia-standin.so.";

/// The number of attempts to read the file, which is rewritten in place because it is mounted.
const ATTEMPTS: usize = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Returns the file next to the library, in a root without the stand-in's folder.
pub(crate) fn beside(library: &Path, root: &Path, version: Option<&str>) -> Option<PathBuf> {
    let file = library.parent()?.join(format!("{NAME}{}", version?));
    (!root.join("etc/standin").exists() && file.exists()).then_some(file)
}

/// Reads a file of the stand-in's folder.
pub(crate) fn read(file: &Path, version: Option<&str>, name: &str) -> io::Result<String> {
    match name {
        "gpus.json" => whole(file),
        "module/nvidia/version" => version.map(str::to_owned).ok_or_else(|| io::ErrorKind::NotFound.into()),
        _ => Err(io::ErrorKind::NotFound.into()),
    }
}

fn whole(file: &Path) -> io::Result<String> {
    for _ in 1..ATTEMPTS {
        let text = fs::read_to_string(file)?;
        if serde_json::from_str::<serde::de::IgnoredAny>(&text).is_ok() {
            return Ok(text);
        }
        thread::sleep(PAUSE);
    }
    fs::read_to_string(file)
}
