//! What a forecast is made from.

use k8s_openapi::jiff::Timestamp;

use super::budgets::DisruptionBudget;
use crate::{catalogue::Catalogue, settings::Settings, world::World};

/// What a forecast is made from.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The settings of the operator.
    pub settings: &'a Settings,
    pub catalogue: &'a Catalogue,
    /// The cluster, with the GPU pods of all nodes.
    pub world: &'a World,
    pub budgets: &'a [DisruptionBudget],
    /// The time at which the policies are applied.
    pub now: Timestamp,
}
