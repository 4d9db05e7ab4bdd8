//! The files of a configuration and their roles. Pure.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::{daemon_json, toml_file};

/// A container runtime.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// containerd.
    Containerd,
    /// Docker, behind cri-dockerd.
    Docker,
    /// CRI-O.
    #[value(name = "crio")]
    CriO,
}

/// Identifies NVIDIA's entries of this installer among those of others.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The name under which NVIDIA's runtime is configured.
    pub handler: String,
    /// The folder of NVIDIA's programs on the host.
    pub install_dir: String,
}

impl Ours {
    /// Returns whether the installer configures a runtime under this name.
    #[must_use]
    pub fn is_name(&self, name: &str) -> bool {
        name == self.handler || ["nvidia-cdi", "nvidia-legacy"].contains(&name)
    }

    /// Returns whether the installer has installed this program; an `nvidia` runtime with another program is
    /// third-party.
    #[must_use]
    pub fn is_program(&self, path: &str) -> bool {
        path.strip_prefix(&self.install_dir).is_some_and(|rest| rest.starts_with("/nvidia-container-runtime"))
    }
}

/// A configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Its path.
    pub path: PathBuf,
    /// Its role.
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

/// The text of a file; `None` if it does not exist.
pub type Text = Option<String>;

/// Why a file cannot be edited.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It is not UTF-8.
    #[error("is not a text file")]
    NotText,
    /// It is not a JSON object.
    #[error("is not a JSON object")]
    Json(#[source] serde_json::Error),
    /// It is not TOML.
    #[error("is not valid TOML")]
    Toml(#[source] toml_edit::TomlError),
}

/// Returns the files of a configuration.
#[must_use]
pub fn files(kind: Kind, config: Option<&Path>, drop_in: Option<&Path>) -> Vec<File> {
    let import = drop_in.and_then(Path::parent).map(|folder| format!("{}/*.toml", folder.display()));
    let main = config.map(|path| {
        let role = if kind == Kind::Docker { Role::Json } else { Role::Main { import } };
        File { path: path.to_owned(), role }
    });
    let drop_in = drop_in.map(|path| File { path: path.to_owned(), role: Role::DropIn });
    main.into_iter().chain(drop_in).collect()
}

impl Role {
    /// Returns whether NVIDIA's runtime is configured in a file of this role.
    #[must_use]
    pub fn has(&self, text: &Text, ours: &Ours) -> bool {
        let Some(text) = text else { return false };
        match self {
            Self::Json => daemon_json::has(text, ours),
            Self::Main { .. } | Self::DropIn => toml_file::has(text, ours),
        }
    }

    /// Returns a file of this role without NVIDIA's entries, given its original content.
    ///
    /// # Errors
    /// Returns an error if the file does not have the expected format: it is left unchanged.
    pub fn without(&self, text: &Text, found: &Text, ours: &Ours) -> Result<Text, FileError> {
        let Some(present) = text else { return Ok(None) };
        match self {
            Self::Json => daemon_json::without(present, found.as_deref(), ours),
            Self::Main { import } => toml_file::without(present, found.as_deref(), import.as_deref(), ours),
            Self::DropIn if self.has(text, ours) => Ok(found.clone()),
            // A third party has put its own file there.
            Self::DropIn => Ok(text.clone()),
        }
    }
}

/// Returns a digest of the files: the same for the same texts.
#[must_use]
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

/// The configuration that the runtime is known to have loaded.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The process that has loaded it.
    pub process: super::daemon::Identity,
    /// The digest of the files at that time.
    pub digest: String,
}
