//! The node that a driver is chosen for.

use gpu_operator_crd::{policy::Images, report::Report};

use crate::{catalogue::Catalogue, inventory::gpus::Discovery, world::NodeFacts};

/// What a driver is chosen by, beside what the policy says of it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The catalogue.
    pub catalogue: &'a Catalogue,
    /// Where images come from.
    pub images: &'a Images,
    /// The Node.
    pub node: &'a NodeFacts,
    /// Its GPUs.
    pub discovery: &'a Discovery<'a>,
    /// What its probe says.
    pub report: &'a Report,
    /// The precompiled image that is known not to be there.
    pub missing_image: Option<&'a str>,
}
