//! The files of a configuration: which they are, and what in them is ours. Pure.

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

/// By what our own entries are told from those of others.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    /// The name under which NVIDIA's runtime is entered.
    pub handler: String,
    /// The folder of NVIDIA's programs on the host.
    pub install_dir: String,
}

impl Ours {
    /// Whether the installer enters a runtime under this name.
    #[must_use]
    pub fn is_name(&self, name: &str) -> bool {
        name == self.handler || ["nvidia-cdi", "nvidia-legacy"].contains(&name)
    }

    /// Whether a program is one that the installer has put there: another `nvidia` is somebody else's.
    #[must_use]
    pub fn is_program(&self, path: &str) -> bool {
        path.strip_prefix(&self.install_dir).is_some_and(|rest| rest.starts_with("/nvidia-container-runtime"))
    }
}

/// A file of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// What it is.
    pub role: Role,
}

/// What a file is.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Docker's `daemon.json`.
    Json,
    /// The main file of a runtime that reads TOML, and the import by which it takes up the drop-in.
    Main {
        /// Such as `/etc/containerd/conf.d/*.toml`.
        import: Option<String>,
    },
    /// A file that is the installer's as a whole.
    DropIn,
}

/// The text of a file, or that it is not there.
pub type Text = Option<String>;

/// Why a file cannot be worked on.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// No UTF-8.
    #[error("is no text")]
    NotText,
    /// No JSON object.
    #[error("is no JSON object")]
    Json(#[source] serde_json::Error),
    /// No TOML.
    #[error("is no TOML")]
    Toml(#[source] toml_edit::TomlError),
}

/// The files of a configuration.
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
    /// Whether NVIDIA's runtime is entered in such a file.
    #[must_use]
    pub fn has(&self, text: &Text, ours: &Ours) -> bool {
        let Some(text) = text else { return false };
        match self {
            Self::Json => daemon_json::has(text, ours),
            Self::Main { .. } | Self::DropIn => toml_file::has(text, ours),
        }
    }

    /// Such a file without what is ours, given what was found at first.
    ///
    /// # Errors
    /// Where the file is not of its form: it is not ours to mend.
    pub fn without(&self, text: &Text, found: &Text, ours: &Ours) -> Result<Text, FileError> {
        let Some(present) = text else { return Ok(None) };
        match self {
            Self::Json => daemon_json::without(present, found.as_deref(), ours),
            Self::Main { import } => toml_file::without(present, found.as_deref(), import.as_deref(), ours),
            Self::DropIn if self.has(text, ours) => Ok(found.clone()),
            // Somebody has put a file of his own there.
            Self::DropIn => Ok(text.clone()),
        }
    }
}

/// What the files are, as one word: the same for the same texts.
#[must_use]
pub fn digest<'t>(texts: impl IntoIterator<Item = (&'t Path, &'t Text)>) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for (path, text) in texts {
        // Lengths keep one file's end from being another's beginning.
        let text = text.as_deref();
        hash.update(format!("{}\0{:?}\0", path.display(), text.map(str::len)));
        hash.update(text.unwrap_or_default());
    }
    let hash = hash.finalize();
    let half: [u8; 16] = std::array::from_fn(|at| hash[at]);
    format!("{:032x}", u128::from_be_bytes(half))
}

/// What the runtime has loaded, so far as we know.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The process that has loaded it.
    pub process: super::daemon::Identity,
    /// What the files were then, as [`digest`] tells.
    pub digest: String,
}
