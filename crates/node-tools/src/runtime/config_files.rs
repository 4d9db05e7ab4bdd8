//! The files of a configuration, their roles and texts, and the record of them before NVIDIA's runtime was added and as the
//! installer left them. Pure.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    daemon_json,
    entries::{FormatError, NvidiaEntries, RuntimeKind},
    toml_file,
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: PathBuf,
    pub role: Role,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Docker's `daemon.json`.
    Json,
    /// The main file of a runtime that reads TOML, with the import that includes the drop-in.
    Main {
        /// A pattern such as `/etc/containerd/conf.d/*.toml`.
        import: Option<String>,
    },
    /// A file that belongs entirely to the installer.
    DropIn,
}

pub fn config_files(kind: RuntimeKind, config: Option<&Path>, drop_in: Option<&Path>) -> Vec<ConfigFile> {
    let import = drop_in.and_then(Path::parent).map(|folder| format!("{}/*.toml", folder.display()));
    let main = config.map(|path| {
        let role = if kind == RuntimeKind::Docker { Role::Json } else { Role::Main { import } };
        ConfigFile { path: path.to_owned(), role }
    });
    let drop_in = drop_in.map(|path| ConfigFile { path: path.to_owned(), role: Role::DropIn });
    main.into_iter().chain(drop_in).collect()
}

impl Role {
    pub fn contains_entries(&self, text: &Text, entries: &NvidiaEntries) -> bool {
        let Some(text) = text else { return false };
        match self {
            Self::Json => daemon_json::contains_entries(text, entries),
            Self::Main { .. } | Self::DropIn => toml_file::contains_entries(text, entries),
        }
    }

    /// Returns a file of this role without NVIDIA's entries, given its original content.
    pub fn without_entries(&self, text: &Text, found: &Text, entries: &NvidiaEntries) -> Result<Text, FormatError> {
        let Some(present) = text else { return Ok(None) };
        match self {
            Self::Json => daemon_json::without_entries(present, found.as_deref(), entries),
            Self::Main { import } => toml_file::without_entries(present, found.as_deref(), import.as_deref(), entries),
            Self::DropIn if self.contains_entries(text, entries) => Ok(found.clone()),
            // A third party has put its own file there.
            Self::DropIn => Ok(text.clone()),
        }
    }
}

/// The text of a file; `None` if it does not exist.
pub type Text = Option<String>;

/// The current files, by path.
pub type Texts = BTreeMap<PathBuf, Text>;

/// Returns a digest of the files: the same for the same texts.
pub fn digest<'t>(texts: impl IntoIterator<Item = (&'t Path, &'t Text)>) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for (path, text) in texts {
        // Lengths keep the end of one file from being confused with the start of another.
        let text = text.as_deref();
        hash.update(format!("{}\0{:?}\0", path.display(), text.map(str::len)));
        hash.update(text.unwrap_or_default());
    }
    let hash = hash.finalize();
    let half: [u8; 16] = std::array::from_fn(|at| hash[at]);
    format!("{:032x}", u128::from_be_bytes(half))
}

/// The stored record of a configuration. It survives the pod, the operator and a reboot.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub files: BTreeMap<PathBuf, Kept>,
    /// Whether [`Kept::left`] is known: an installer may have run without a record of its result.
    pub settled: bool,
    pub added: AddedEntries,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct AddedEntries {
    pub entries: NvidiaEntries,
    /// Whether NVIDIA's runtime is the default.
    pub default: bool,
}

#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    pub role: Role,
    /// Without NVIDIA's entries: the original, byte for byte, or as changed by others since.
    pub found: Text,
    /// As the installer left it.
    pub left: Text,
}

#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub struct ConfigFileError {
    pub path: PathBuf,
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
    pub main: &'a Path,
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
