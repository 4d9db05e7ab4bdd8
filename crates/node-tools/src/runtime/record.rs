//! Records the configuration before NVIDIA's runtime was added, and as the installer left it. Pure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    config_files::{ConfigFile, Role},
    entries::{FormatError, NvidiaEntries},
    texts::{Text, Texts},
    toml_file,
};

/// The stored record of a configuration. It survives the pod, the operator and a reboot.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub files: BTreeMap<PathBuf, Kept>,
    /// Whether [`Kept::left`] is known: an installer may have run without a record of its result.
    pub settled: bool,
    /// What was added to the configuration.
    pub added: AddedEntries,
}

/// What is added to a configuration.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct AddedEntries {
    /// Identifies the entries.
    pub entries: NvidiaEntries,
    /// Whether NVIDIA's runtime is the default.
    pub default: bool,
}

/// The record of one file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub role: Role,
    /// Its content without NVIDIA's entries: the original, byte for byte, or as changed by others since.
    pub found: Text,
    /// Its content as the installer left it.
    pub left: Text,
}

/// A file that cannot be edited.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub struct ConfigFileError {
    pub path: PathBuf,
    /// The cause.
    #[source]
    pub source: FormatError,
}

impl Record {
    /// Returns the record to store before the installer runs, given the existing record.
    pub fn snapshot(
        files: &[ConfigFile],
        now: &Texts,
        known: Option<&Self>,
        added: AddedEntries,
    ) -> Result<Self, ConfigFileError> {
        let entries = &added.entries;
        let kept = files.iter().map(|file| {
            let present = now.get(&file.path).cloned().flatten();
            let strip = |found: &Text| {
                let stripped = file.role.without_entries(&present, found, entries);
                stripped.map_err(|source| ConfigFileError { path: file.path.clone(), source })
            };
            let known = known.and_then(|known| Some((known.files.get(&file.path)?, known.settled)));
            let found = match known {
                // The file is as the installer left it, or it is unknown how the installer left it.
                Some((kept, settled)) if !settled || present == kept.left => kept.found.clone(),
                Some((kept, _)) => strip(&kept.found)?,
                // An unreadable file must not be overwritten. Entries left by a pod without a record are not part of
                // the original.
                None => {
                    let stripped = strip(&None)?;
                    if file.role.contains_entries(&present, entries) { stripped } else { present.clone() }
                }
            };
            Ok((file.path.clone(), Kept { role: file.role.clone(), found, left: None }))
        });
        Ok(Self { files: kept.collect::<Result<_, _>>()?, settled: false, added })
    }

    /// Returns the record to store after the installer has run.
    pub fn settle(mut self, now: &Texts) -> Self {
        for (path, kept) in &mut self.files {
            kept.left = now.get(path).cloned().flatten();
        }
        self.settled = true;
        self
    }

    /// Returns the files to write so that NVIDIA's entries are removed.
    pub fn revert(&self, now: &Texts) -> Result<Texts, ConfigFileError> {
        let mut writes = Texts::new();
        for (path, kept) in &self.files {
            let present = now.get(path).cloned().flatten();
            let wanted = if self.settled && present == kept.left {
                kept.found.clone()
            } else {
                let stripped = kept.role.without_entries(&present, &kept.found, &self.added.entries);
                stripped.map_err(|source| ConfigFileError { path: path.clone(), source })?
            };
            if wanted != present {
                writes.insert(path.clone(), wanted);
            }
        }
        Ok(writes)
    }

    /// Returns whether the record is about these files and entries: the policy may have changed.
    pub fn matches(&self, files: &[ConfigFile], added: &AddedEntries) -> bool {
        self.files.len() == files.len()
            && files.iter().all(|file| self.files.contains_key(&file.path))
            && self.added == *added
    }
}

/// A configuration in the installer's drop-in that has to be moved into the main file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedConfig<'a> {
    /// The main file.
    pub main: &'a Path,
    /// Its new content.
    pub text: String,
    /// The drop-in, which has to be removed.
    pub drop_in: &'a Path,
}

/// Returns how to move a version 1 configuration into the main file. Version 1 has no imports, so containerd would never read the
/// installer's drop-in, which contains the whole configuration in that case.
pub fn move_version_1_to_main<'f>(files: &'f [ConfigFile], now: &Texts) -> Option<MovedConfig<'f>> {
    let [main, drop_in] = files else { return None };
    let beside = now.get(&drop_in.path)?.as_ref()?;
    let is_v1 = toml_file::version(beside) == 1 && matches!(main.role, Role::Main { import: Some(_) });
    // CRI-O's files have no version, and have no table named `plugins`.
    let is_containerds =
        toml_edit::Document::parse(beside.as_str()).is_ok_and(|file| file.as_table().contains_key("plugins"));
    let text = || toml_file::with_cdi_in_cri_table(beside).unwrap_or_else(|| beside.clone());
    (is_v1 && is_containerds).then(|| MovedConfig { main: &main.path, text: text(), drop_in: &drop_in.path })
}
