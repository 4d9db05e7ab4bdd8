//! Faults of one GPU: what the stand-in library says of it, and what the probe is to make of that. The probe's own tests,
//! the end-to-end tests and the benchmark read the same ones.

use std::fs;

use anyhow::{Context, Result};
use gpu_operator_crd::health::{Action, CauseKind, HealthState};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The faults, and their absence.
#[derive(Clone, Debug, Deserialize)]
pub struct Faults {
    /// What a GPU says that is well.
    pub well: Map<String, Value>,
    /// What one says that is not.
    pub faults: Vec<Fault>,
}

/// One fault.
#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// It in words, such as `fell off the bus`.
    pub what: String,
    /// What the GPU says: a device of the stand-in library's `gpus.json`.
    pub device: Map<String, Value>,
    /// What the probe is to make of it.
    pub state: HealthState,
    /// What is to be done.
    pub action: Action,
    /// The cause's kind.
    pub kind: CauseKind,
}

impl Faults {
    /// From the stand-in's file.
    ///
    /// # Errors
    /// If the file is not there, or is not as it should be.
    pub fn read() -> Result<Self> {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/standins/nvml/faults.json");
        let text = fs::read_to_string(file).with_context(|| format!("reading {file}"))?;
        serde_json::from_str(&text).with_context(|| format!("reading {file}"))
    }

    /// The one that is called so.
    ///
    /// # Errors
    /// If there is none.
    pub fn named(&self, what: &str) -> Result<&Fault> {
        self.faults.iter().find(|fault| fault.what == what).with_context(|| format!("no fault is called: {what}"))
    }
}
