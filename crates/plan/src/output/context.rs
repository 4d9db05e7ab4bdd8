//! What is the same for everything that one plan writes.

use std::collections::{BTreeMap, BTreeSet};

use gpu_operator_crd::PolicyName;
use k8s_openapi::jiff::Timestamp;

use super::leavers::Leavers;
use crate::{assess::AssessedFleet, rollout::Rollout, settings::Settings};

/// What is the same for everything that one plan writes.
pub struct Context<'f> {
    /// The operator's settings.
    pub settings: &'f Settings,
    /// The fleet.
    pub fleet: &'f AssessedFleet<'f>,
    /// What was decided for its pools.
    pub rollout: &'f Rollout<'f>,
    /// Why models that policies add cannot be added, by policy.
    pub model_conflicts: &'f BTreeMap<PolicyName, String>,
    /// The models that nodes have, also those that the catalogue lacks.
    pub models: BTreeSet<String>,
    /// The nodes that no policy governs any more.
    pub leavers: Leavers,
    /// The time of the plan.
    pub now: Timestamp,
}
