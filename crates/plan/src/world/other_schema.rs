//! CRDs of another version than the operator's.

use gpu_operator_crd::SchemaMismatch;
use k8s_openapi::jiff::Timestamp;

use crate::{settings::GRACE, time::later};

/// A CRD whose schema revision is not the operator's. What it stores may lack fields that the operator has written, or have fields that
/// the operator does not know, so that it is not known what is no longer needed, or what a policy requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherSchema {
    /// The CRD, and its revision.
    pub mismatch: SchemaMismatch,
    /// Since when the operator has observed that.
    pub since: Timestamp,
}

impl OtherSchema {
    /// Returns from when on policies report it: during an upgrade, CRDs and operator differ for some seconds.
    pub fn reported_from(&self) -> Timestamp {
        later(self.since, GRACE)
    }

    /// Returns the message of the condition that reports it.
    pub fn message(&self) -> String {
        let Self { mismatch, .. } = self;
        format!("{mismatch}; nothing is removed and no update begins meanwhile: {}", mismatch.remedy())
    }
}
