//! Files that the library itself writes.

use std::{collections::BTreeMap, fs::File, io::Write};

use rustix::fs::{Mode, OFlags, openat, renameat};
use serde::{Serialize, de::DeserializeOwned};

use crate::{library::Library, status::Status};

impl Library {
    /// Returns what a file of the stand-in's folder has for each GPU, by PCI address.
    pub(crate) fn stored<T: DeserializeOwned>(&self, name: &str) -> Result<BTreeMap<String, T>, Status> {
        let Ok(text) = self.read(name) else { return Ok(BTreeMap::new()) };
        serde_json::from_str(&text).map_err(|_| Status::Unknown)
    }

    /// Replaces a file of the stand-in's folder in one step, so that readers never see an incomplete file.
    pub(crate) fn replace(&self, name: &str, content: &impl Serialize) -> Result<(), Status> {
        let text = serde_json::to_vec(content).map_err(|_| Status::Unknown)?;
        let folder = self.folder().map_err(|_| Status::Unknown)?;
        let new = format!("{name}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        let file = openat(&folder, &new, flags, Mode::from_raw_mode(0o644)).map_err(|_| Status::NoPermission)?;
        File::from(file).write_all(&text).map_err(|_| Status::Unknown)?;
        renameat(&folder, &new, &folder, name).map_err(|_| Status::Unknown)
    }
}
