//! Faults of a GPU: what the stand-in library reports, and the health that the probe must derive from it. The probe's own
//! tests and the end-to-end tests use the same faults.

use gpu_operator_crd::health::{Action, CauseKind, HealthState};
use serde::Deserialize;
use serde_json::{Map, Value};

/// All faults, and the healthy state.
#[derive(Clone, Debug, Deserialize)]
pub struct Faults {
    /// The device of a healthy GPU in the stand-in library's `gpus.json`.
    pub well: Map<String, Value>,
    pub faults: Vec<Fault>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Fault {
    /// The name, such as `fell off the bus`.
    pub what: String,
    /// The GPU's device in the stand-in library's `gpus.json`.
    pub device: Map<String, Value>,
    /// The expected health state.
    pub state: HealthState,
    /// The expected recommended action.
    pub action: Action,
    /// The expected kind of cause.
    pub kind: CauseKind,
}

impl Faults {
    /// Reads the faults from the stand-in's file.
    pub fn read() -> Self {
        serde_json::from_str(include_str!("../../../e2e/standins/nvml/faults.json")).expect("faults")
    }

    pub fn named(&self, what: &str) -> &Fault {
        self.faults.iter().find(|fault| fault.what == what).unwrap_or_else(|| panic!("no fault has the name: {what}"))
    }
}
