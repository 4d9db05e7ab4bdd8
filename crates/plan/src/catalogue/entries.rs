//! The entries of the data files, and what can be wrong with them.

use gpu_operator_crd::policy::{Architecture, ModuleSupport};
use serde::Deserialize;
use thiserror::Error;

use super::model::Limit;

/// An error in the catalogue's data files.
#[derive(Debug, Error)]
pub enum CatalogueError {
    #[error("invalid catalogue of accelerators: {0}")]
    Shape(#[from] serde_yaml::Error),
    #[error("duplicate {what} {value} in the catalogue of accelerators")]
    Duplicate {
        /// The kind of value, such as `name or alias`.
        what: &'static str,
        value: String,
    },
    #[error("invalid value {value:?} in the catalogue of accelerators: expected {what}")]
    Illegal {
        /// The expected kind of value.
        what: &'static str,
        value: String,
    },
    #[error("the catalogue of accelerators does not define architecture {0}")]
    UnknownArchitecture(Architecture),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct ModelEntry {
    pub(super) name: String,
    pub(super) architecture: Architecture,
    pub(super) devices: Vec<DeviceEntry>,
    #[serde(default)]
    pub(super) aliases: Vec<String>,
    /// Over the architecture's.
    pub(super) first: Option<Limit>,
    /// Over the architecture's.
    pub(super) modules: Option<ModuleSupport>,
    /// Whether its drivers are published among those for desktop cards, where the name is misleading.
    pub(super) desktop: Option<bool>,
    pub(super) believed: Option<String>,
}

impl ModelEntry {
    /// A model of which nothing is known but what holds for its architecture.
    pub(super) fn of_table(name: &str, architecture: Architecture, devices: Vec<DeviceEntry>) -> Self {
        let (name, aliases) = (name.to_owned(), Vec::new());
        Self { name, architecture, devices, aliases, first: None, modules: None, desktop: Some(true), believed: None }
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct DeviceEntry {
    pub(super) id: String,
    pub(super) subsystem: Option<String>,
    pub(super) memory_mib: Option<u32>,
}

pub(super) fn illegal(what: &'static str, value: &str) -> CatalogueError {
    CatalogueError::Illegal { what, value: value.to_owned() }
}
