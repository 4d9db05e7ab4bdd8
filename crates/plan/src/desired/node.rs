//! The desired state of one node.

use std::{ops::Deref, sync::Arc};

use gpu_operator_crd::{
    ClusterGpuPolicy,
    gpunode::StageRevisions,
    policy::{Pool, Stage},
};

use super::{
    driver::subject::Subject,
    effective_spec,
    fault::Fault,
    variant::{self, Variant},
    variants::Variants,
};
use crate::{
    catalogue::Catalogue,
    inventory::{GovernedNode, KnownNode, external_stack::ExternalStack, foreign_stacks::ForeignStacks},
    revision,
    world::{ResourceLayout, World},
};

/// What a policy wants of a node's driver, toolkit and device plugin.
#[derive(Clone, Debug)]
pub enum Desired {
    /// Not known yet: the probe has not reported since the node's boot, or the container runtime does not answer.
    Unknown,
    /// The node cannot have what the policy requires.
    Unsatisfiable(Fault),
    Variant(Arc<Variant>),
}

impl Desired {
    /// Returns the variant, if the policy can be applied.
    pub fn variant(&self) -> Option<&Variant> {
        match self {
            Self::Variant(variant) => Some(variant),
            Self::Unknown | Self::Unsatisfiable(_) => None,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    /// Returns why the policy cannot be applied, if it cannot.
    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Unsatisfiable(fault) => Some(fault),
            Self::Unknown | Self::Variant(_) => None,
        }
    }
}

/// A governed node with its desired state.
#[derive(Debug)]
pub struct DesiredNode<'w> {
    governed: GovernedNode<'w>,
    /// The third-party parts of its GPU stack.
    pub external: ExternalStack,
    /// The components that the policy requires on the node.
    pub desired: Desired,
    /// How many GPUs it should have.
    pub expected: Option<u32>,
    /// The resources that its device plugin makes of each GPU.
    pub offer: ResourceLayout,
}

impl<'w> Deref for DesiredNode<'w> {
    type Target = GovernedNode<'w>;

    fn deref(&self) -> &GovernedNode<'w> {
        &self.governed
    }
}

/// Resolves the desired state of a node.
pub fn resolve<'w>(
    governed: GovernedNode<'w>,
    catalogue: &'w Catalogue,
    world: &'w World,
    stacks: &ForeignStacks<'_>,
    variants: &mut Variants<'w>,
) -> DesiredNode<'w> {
    let GovernedNode { policy, ref pool, ref discovery, .. } = governed;
    let KnownNode { node, gpu_node, report, ref have, .. } = *governed;
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let foreign_policy =
        (effective_spec::foreign_stack(policy, pool.named), effective_spec::device_plugin(policy, pool.named).flavor);
    let external = ExternalStack::of(stacks, node, have, report, status, foreign_policy);
    // The desired state depends on the container runtime, whose version is unknown while it is down.
    let known = status.zip(report).filter(|_| !node.runtime_is_silent());
    let desired = known.map_or(Desired::Unknown, |(status, report)| {
        let subject = Subject {
            catalogue,
            images: &policy.spec.images,
            node,
            has_driver: have.driver.is_some(),
            discovery,
            report,
            missing_image: status.missing_image.as_deref(),
        };
        match variant::choose(policy, pool, &subject, &external) {
            Ok(key) => Desired::Variant(variants.resolve(policy, pool.named, key)),
            Err(fault) => Desired::Unsatisfiable(fault),
        }
    });
    let expected = discovery.expected.in_pool(pool.named);
    let offer = offer(world, policy, pool.named, have);
    DesiredNode { governed, external, desired, expected, offer }
}

/// Returns the resources that a node's current device plugin makes of a GPU: while a new revision is pending, the old
/// one counts.
fn offer(world: &World, policy: &ClusterGpuPolicy, pool: Option<&Pool>, have: &StageRevisions) -> ResourceLayout {
    let set = have.device_plugin.as_ref().map(|group| revision::daemon_set_name(Stage::DevicePlugin, group));
    let set = set.and_then(|set| world.daemon_sets.get(&set));
    set.map_or_else(|| ResourceLayout::of(&effective_spec::device_plugin(policy, pool)), |set| set.offer.clone())
}
