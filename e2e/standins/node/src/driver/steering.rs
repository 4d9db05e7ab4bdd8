//! What the test harness wants the driver to do.

use std::{fs, io, path::Path};

use anyhow::{Context, Result};
use serde::Deserialize;

/// The content of `driver.json`. No file means [`Mode::Ok`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Steering {
    /// What to do.
    #[serde(default)]
    pub mode: Mode,
    /// The version that [`Mode::WrongVersion`] loads.
    #[serde(default)]
    pub loads: Option<String>,
    /// What [`Mode::Crash`] says.
    #[serde(default)]
    pub message: Option<String>,
}

/// What to do.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Install the driver.
    #[default]
    Ok,
    /// Wait with the installation until the mode changes; a driver that is installed already stays.
    Hold,
    /// Fail, now or when running.
    Crash,
    /// Load another version than the image's, until the mode changes.
    WrongVersion,
}

impl Steering {
    /// Reads `driver.json` in this folder.
    ///
    /// # Errors
    /// If the file is there and makes no sense.
    pub fn read(standin: &Path) -> Result<Self> {
        let path = standin.join("driver.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// The version to load, where the image brings `own`.
    ///
    /// # Errors
    /// If the mode demands another one and names none.
    pub fn version(&self, own: &str) -> Result<String> {
        match self.mode {
            Mode::WrongVersion => self.loads.clone().context("driver.json: mode wrong-version needs `loads`"),
            _ => Ok(own.to_owned()),
        }
    }

    /// What to say when failing on demand.
    #[must_use]
    pub fn failure(&self) -> String {
        self.message.clone().unwrap_or_else(|| "the driver failed, as driver.json demands".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_file_means_ok_and_a_misspelt_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Steering::read(folder.path()).unwrap(), Steering::default());
        fs::write(folder.path().join("driver.json"), r#"{"mode":"wrong-version","loads":"1.2"}"#).unwrap();
        assert_eq!(Steering::read(folder.path()).unwrap().version("3.4").unwrap(), "1.2");
        fs::write(folder.path().join("driver.json"), r#"{"mod":"crash"}"#).unwrap();
        assert!(Steering::read(folder.path()).is_err());
    }
}
