//! The desired state: the driver, toolkit and device plugin of each kind of node.

pub mod container_runtime;
pub mod device_plugin;
pub mod dra;
pub mod driver;
pub mod expected_resources;
pub mod images;
pub mod key;
pub mod mig_layout;
pub mod stages;
pub mod toolkit;
pub mod variant;

use std::{ops::Deref, rc::Rc, sync::Arc};

use gpu_operator_crd::{gpunode::StageRevisions, policy::Stage};
use k8s_openapi::jiff::Timestamp;

use crate::{
    clock::Clock,
    desired::{
        driver::Subject,
        variant::{Variant, Variants},
    },
    ground::Ground,
    inventory::{Fleet, GovernedNode, KnownNode, external_stack::ExternalStack},
    note::Fault,
    pool_settings::PoolSettings,
    revision,
    world::{PublishedGpus, ResourceLayout},
};

pub fn resolve<'w>(
    fleet: Fleet<'w, GovernedNode<'w>>,
    variants: &mut Variants<'w>,
    now: Timestamp,
) -> Fleet<'w, DesiredNode<'w>> {
    let Fleet { world, ground, governed, unmanaged } = fleet;
    let resolve = |node| resolve_node(node, ground, variants, Clock::at(now));
    let governed = governed.into_iter().map(resolve).collect();
    Fleet { world, ground, governed, unmanaged }
}

impl<'w> Fleet<'w, DesiredNode<'w>> {
    /// Adds the governed nodes of another part of the fleet.
    pub fn add(&mut self, other: Self) {
        self.governed.extend(other.governed);
        self.governed.sort_by(|one, other| one.node.name.cmp(&other.node.name));
    }
}

/// What a policy wants of a node's driver, toolkit and device plugin.
#[derive(Clone, Debug)]
pub enum Desired {
    /// Not known yet: the probe has not reported since the node's boot, or the container runtime does not answer.
    Unknown,
    Unsatisfiable(Fault),
    Variant(Arc<Variant>),
}

impl Desired {
    pub fn variant(&self) -> Option<&Arc<Variant>> {
        match self {
            Self::Variant(variant) => Some(variant),
            Self::Unknown | Self::Unsatisfiable(_) => None,
        }
    }

    pub fn is_unknown(&self) -> bool {
        matches!(self, Self::Unknown)
    }

    pub fn fault(&self) -> Option<&Fault> {
        match self {
            Self::Unsatisfiable(fault) => Some(fault),
            Self::Unknown | Self::Variant(_) => None,
        }
    }
}

#[derive(Debug)]
pub struct DesiredNode<'w> {
    governed: GovernedNode<'w>,
    /// The third-party parts of its GPU stack.
    pub external: ExternalStack,
    pub target: Desired,
    pub expected: Option<u32>,
    /// Whether the host's configuration of the container runtime disables CDI.
    pub disables_cdi: bool,
    /// The resources that its device plugin makes of each GPU.
    pub resource_layout: ResourceLayout,
    /// The GPUs in the slices of the node.
    pub published: PublishedGpus,
    /// The node's own: it knows when the node has to be planned again.
    pub clock: Rc<Clock>,
}

impl DesiredNode<'_> {
    /// Whether the node has other revisions than the wanted ones, not just fewer.
    pub fn is_outdated(&self) -> bool {
        self.target.variant().is_some_and(|variant| !has_nothing_else(&self.have, &variant.revisions))
    }
}

/// Some revisions may be missing: the node never had them, or a user removed a label. Restoring a label disrupts nothing, because a revision's
/// name includes its driver.
pub fn has_nothing_else(have: &StageRevisions, want: &StageRevisions) -> bool {
    Stage::ALL.into_iter().all(|stage| {
        let had = have.get(stage);
        had.is_none() || had == want.get(stage)
    })
}

impl<'w> Deref for DesiredNode<'w> {
    type Target = GovernedNode<'w>;

    fn deref(&self) -> &GovernedNode<'w> {
        &self.governed
    }
}

fn resolve_node<'w>(
    governed: GovernedNode<'w>,
    ground: &Ground<'_>,
    variants: &mut Variants<'w>,
    clock: Clock,
) -> DesiredNode<'w> {
    let GovernedNode { policy, ref pool, ref discovery, .. } = governed;
    let KnownNode { node, gpu_node, report, ref have, .. } = *governed;
    let status = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref());
    let foreign_policy = (pool.settings.foreign_stack, pool.settings.device_plugin.flavor);
    let external = ExternalStack::of(&ground.third_party, &governed, foreign_policy, &clock);
    let disables_cdi = container_runtime::disables_cdi(node, have, report, status);
    // The desired state depends on the container runtime, whose version is unknown while it is down.
    let known = status.zip(report).filter(|_| !node.runtime_is_silent());
    let target = known.map_or(Desired::Unknown, |(status, report)| {
        let subject = Subject {
            catalogue: ground.catalogue(),
            images: &policy.spec.images,
            node,
            has_driver: have.driver.is_some(),
            discovery,
            report,
            missing_image: status.missing_image.as_deref(),
        };
        match variant::choose(pool, &subject, &external, disables_cdi) {
            Ok(key) => Desired::Variant(variants.resolve(pool.settings, key)),
            Err(fault) => Desired::Unsatisfiable(fault),
        }
    });
    let expected = discovery.expected.in_pool(pool.settings.pool);
    let is_external = external.third_party(Stage::DevicePlugin).is_some();
    let resource_layout = resource_layout(ground, pool.settings, have, is_external);
    let published = PublishedGpus::of(ground.third_party.slices_of(&node.name).iter().map(AsRef::as_ref));
    let clock = Rc::new(clock);
    DesiredNode { governed, external, target, expected, disables_cdi, resource_layout, published, clock }
}

/// While a new revision is pending, the resources of the current device plugin count.
fn resource_layout(
    ground: &Ground<'_>,
    pool: &PoolSettings<'_>,
    have: &StageRevisions,
    is_external: bool,
) -> ResourceLayout {
    let set = have.device_plugin.as_ref().map(|revision| revision::daemon_set_name(Stage::DevicePlugin, revision));
    let set = set.and_then(|set| ground.daemon_sets.get(&set));
    let of_pool = || {
        if pool.allocation.is_by_claims() && !is_external {
            ResourceLayout::by_claims()
        } else {
            ResourceLayout::of(pool.device_plugin)
        }
    };
    set.map_or_else(of_pool, |set| set.resource_layout.clone())
}
