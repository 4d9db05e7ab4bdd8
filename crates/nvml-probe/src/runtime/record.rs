//! What a configuration was before NVIDIA's runtime was entered, and what it was left as. Pure.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    files::{File, FileError, Ours, Role, Text},
    toml_file,
};

/// The files as they are now, by path.
pub type Texts = BTreeMap<PathBuf, Text>;

/// What is kept of a configuration. It outlives the pod, the operator and a reboot.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The files, by path.
    pub files: BTreeMap<PathBuf, Kept>,
    /// Whether [`Kept::left`] is known: an installer may have been and gone without it.
    pub settled: bool,
    /// What was entered. Absent in records from before it was kept.
    #[serde(default)]
    pub entered: Option<Entered>,
}

/// What is entered into a configuration.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Entered {
    /// By what it is told from what others enter.
    pub ours: Ours,
    /// Whether NVIDIA's runtime is the default.
    pub default: bool,
}

/// What is kept of a file.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What it is.
    pub role: Role,
    /// What it is without anything of ours: as it was found, to the byte, or as others have made it since.
    pub found: Text,
    /// What the installer left it as.
    pub left: Text,
}

/// A file that cannot be worked on.
#[derive(Debug, thiserror::Error)]
#[error("{}", path.display())]
pub struct AtFile {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: FileError,
}

impl Record {
    /// What is kept before the installer runs, given what is kept already.
    ///
    /// # Errors
    /// Where a file is not of its form: then the installer must not touch it either.
    pub fn snapshot(files: &[File], now: &Texts, known: Option<&Self>, ours: &Ours) -> Result<Self, AtFile> {
        let kept = files.iter().map(|file| {
            let present = now.get(&file.path).cloned().flatten();
            let strip = |found: &Text| {
                let stripped = file.role.without(&present, found, ours);
                stripped.map_err(|source| AtFile { path: file.path.clone(), source })
            };
            let known = known.and_then(|known| Some((known.files.get(&file.path)?, known.settled)));
            let found = match known {
                // Nobody else has written since, or nobody can tell.
                Some((kept, settled)) if !settled || present == kept.left => kept.found.clone(),
                Some((kept, _)) => strip(&kept.found)?,
                // What is of no use to read must not be overwritten; what was left by a pod without a memory is not kept.
                None => {
                    let stripped = strip(&None)?;
                    if file.role.has(&present, ours) { stripped } else { present.clone() }
                }
            };
            Ok((file.path.clone(), Kept { role: file.role.clone(), found, left: None }))
        });
        Ok(Self { files: kept.collect::<Result<_, _>>()?, settled: false, entered: None })
    }

    /// What is kept once the installer has run.
    #[must_use]
    pub fn settle(mut self, now: &Texts) -> Self {
        for (path, kept) in &mut self.files {
            kept.left = now.get(path).cloned().flatten();
        }
        self.settled = true;
        self
    }

    /// What the files are to be without anything of ours: only those that have to be written.
    ///
    /// # Errors
    /// Where a file is not of its form: others have written it since, and it is not ours to mend.
    pub fn revert(&self, now: &Texts, ours: &Ours) -> Result<Texts, AtFile> {
        let mut writes = Texts::new();
        for (path, kept) in &self.files {
            let present = now.get(path).cloned().flatten();
            let wanted = if self.settled && present == kept.left {
                kept.found.clone()
            } else {
                let stripped = kept.role.without(&present, &kept.found, ours);
                stripped.map_err(|source| AtFile { path: path.clone(), source })?
            };
            if wanted != present {
                writes.insert(path.clone(), wanted);
            }
        }
        Ok(writes)
    }

    /// Whether it is of these files and of what is to be entered into them: a policy may name others now.
    #[must_use]
    pub fn is_of(&self, files: &[File], entered: &Entered) -> bool {
        self.files.len() == files.len()
            && files.iter().all(|file| self.files.contains_key(&file.path))
            && self.entered.as_ref().is_none_or(|known| known == entered)
    }
}

/// A file of version 1 knows no imports, so that containerd would never read what the installer puts beside it: that is
/// the whole configuration then, and takes the main file's place.
#[must_use]
pub fn take_in_version_1(files: &[File], now: &Texts) -> Option<Texts> {
    let [main, drop_in] = files else { return None };
    let beside = now.get(&drop_in.path)?.as_ref()?;
    let is_v1 = toml_file::version(beside) == 1 && matches!(main.role, Role::Main { import: Some(_) });
    // CRI-O's files have no version, and none of them is called a plugin's.
    let is_containerds =
        toml_edit::Document::parse(beside.as_str()).is_ok_and(|file| file.as_table().contains_key("plugins"));
    (is_v1 && is_containerds)
        .then(|| Texts::from([(main.path.clone(), Some(beside.clone())), (drop_in.path.clone(), None)]))
}
