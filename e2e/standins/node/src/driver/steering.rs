//! The driver behaviour that the test harness requests.

use std::{fs, io, path::Path};

use anyhow::{Context, Result};
use serde::Deserialize;

/// The content of `driver.json`. Without the file the mode is [`Mode::Ok`].
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Steering {
    /// What to do.
    #[serde(default)]
    pub mode: Mode,
    /// The version that [`Mode::WrongVersion`] loads.
    #[serde(default)]
    pub loads: Option<String>,
    /// The message of [`Mode::Crash`].
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
    /// Wait with the installation until the mode changes. An installed driver stays.
    Hold,
    /// Fail, now or when running.
    Crash,
    /// Load another version than the image's, until the mode changes.
    WrongVersion,
}

impl Steering {
    /// Reads `driver.json` in this folder.
    pub fn read(standin: &Path) -> Result<Self> {
        let path = standin.join("driver.json");
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    /// Returns the version to load, for an image with version `own`.
    pub fn version(&self, own: &str) -> Result<String> {
        match self.mode {
            Mode::WrongVersion => self.loads.clone().context("driver.json: mode wrong-version needs `loads`"),
            _ => Ok(own.to_owned()),
        }
    }

    /// Returns the message for a requested failure.
    pub fn failure(&self) -> String {
        self.message.clone().unwrap_or_else(|| "the driver failed, as driver.json demands".into())
    }
}
