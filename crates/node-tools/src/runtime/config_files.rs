//! The files of a configuration and their roles. Pure.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    daemon_json,
    entries::{FormatError, NvidiaEntries},
    kind::RuntimeKind,
    texts::Text,
    toml_file,
};

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFile {
    pub path: PathBuf,
    pub role: Role,
}

/// The role of a configuration file.
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

/// Returns the files of a configuration.
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
    /// Returns whether NVIDIA's runtime is configured in a file of this role.
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
