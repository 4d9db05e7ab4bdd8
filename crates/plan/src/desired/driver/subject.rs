//! The node that a driver is chosen for.

use gpu_operator_crd::{policy::Images, report::Report};

use crate::{catalogue::Catalogue, inventory::gpus::Discovery, world::NodeFacts};

/// The inputs of the choice of a driver, in addition to the policy.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub catalogue: &'a Catalogue,
    /// Where images come from.
    pub images: &'a Images,
    pub node: &'a NodeFacts,
    /// Whether it has a driver of this operator.
    pub has_driver: bool,
    /// Its GPUs.
    pub discovery: &'a Discovery<'a>,
    /// Its probe's report.
    pub report: &'a Report,
    /// The precompiled image that is known to be missing.
    pub missing_image: Option<&'a str>,
}
