//! Pools: which one governs a node, and what holds in it once defaults are filled in.

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{DevicePlugin, Driver, ForeignStack, Health, Image, Labels, Mig, Operand, Pool, Selector, Toolkit},
};

use super::signal::canonical;
use crate::{
    catalogue::Catalogue,
    world::{NodeLabels, Word},
};

/// Whether a node with these labels is selected; without a selector every node is.
#[must_use]
pub fn selects(selector: Option<&Selector>, labels: &NodeLabels) -> bool {
    selector.is_none_or(|selector| selector.matches(|key| labels.get(key).map(Word::as_str)))
}

/// The named pool that governs a node of this model, if any: the first that matches. A model may be written in any cloud's
/// word for it.
#[must_use]
pub fn named_pool<'p>(
    catalogue: &Catalogue,
    policy: &'p ClusterGpuPolicy,
    model: Option<&str>,
    labels: &NodeLabels,
) -> Option<&'p Pool> {
    policy.spec.pools.iter().find(|pool| {
        let matches = &pool.matches;
        let of_model = |wanted: &String| Some(canonical(catalogue, wanted)).as_deref() == model;
        (matches.models.is_empty() || matches.models.iter().any(of_model))
            && selects(matches.node_selector.as_ref(), labels)
    })
}

/// What holds for the driver: the pool's fields over the defaults.
#[must_use]
pub fn driver(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Driver {
    let defaults = &policy.spec.defaults.driver;
    let Some(own) = pool.map(|pool| &pool.driver) else {
        return defaults.clone();
    };
    let mut inherited = defaults.operand.clone();
    if own.version.is_some()
        && let Some(image) = &mut inherited.image
    {
        // The default's tag or digest is of the default's version.
        (image.tag, image.digest) = (None, None);
    }
    Driver {
        source: own.source.or(defaults.source),
        version: own.version.clone().or_else(|| defaults.version.clone()),
        kernel_module: own.kernel_module.or(defaults.kernel_module),
        operand: operand(&inherited, Some(&own.operand)),
    }
}

/// What holds for the container toolkit: the pool's fields over the defaults.
#[must_use]
pub fn toolkit(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Toolkit {
    let defaults = &policy.spec.defaults.toolkit;
    let own = pool.map(|pool| &pool.toolkit);
    Toolkit { operand: operand(&defaults.operand, own.map(|own| &own.operand)) }
}

/// What holds for the device plugin: the pool's fields over the defaults.
#[must_use]
pub fn device_plugin(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> DevicePlugin {
    let defaults = &policy.spec.defaults.device_plugin;
    let none = DevicePlugin::default();
    let own = pool.map_or(&none, |pool| &pool.device_plugin);
    let flavor = own.flavor.or(defaults.flavor);
    // Of another plugin, nothing is inherited that only means something to this one.
    let same = own.flavor.is_none() || defaults.flavor.unwrap_or_default() == flavor.unwrap_or_default();
    let inherited = if same { defaults } else { &none };
    let strategy = |mig: Option<&Mig>| mig.and_then(|mig| mig.strategy);
    let strategy = strategy(own.mig.as_ref()).or(strategy(inherited.mig.as_ref()));
    DevicePlugin {
        flavor,
        sharing: own.sharing.clone().or_else(|| inherited.sharing.clone()),
        mig: strategy.map(|strategy| Mig { strategy: Some(strategy) }),
        fail_on_init_error: own.fail_on_init_error.or(inherited.fail_on_init_error),
        container_metrics: own.container_metrics.clone().or_else(|| inherited.container_metrics.clone()),
        health_monitoring: own.health_monitoring.or(inherited.health_monitoring),
        operand: operand(&inherited.operand, Some(&own.operand)),
    }
}

/// What becomes of nodes that somebody else's stack serves: the pool's word over the defaults'.
#[must_use]
pub fn foreign_stack(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> ForeignStack {
    pool.and_then(|pool| pool.foreign_stack).or(policy.spec.defaults.foreign_stack).unwrap_or_default()
}

/// What holds for the health of GPUs: the pool's fields over the policy's.
#[must_use]
pub fn health(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Health {
    let whole = &policy.spec.health;
    pool.map_or_else(|| whole.clone(), |pool| pool.health.over(whole))
}

/// What holds for an operand: image part by part, environment by name, arguments and resources as a whole.
#[must_use]
pub fn operand(defaults: &Operand, own: Option<&Operand>) -> Operand {
    let Some(own) = own else { return defaults.clone() };
    let mut env = defaults.env.clone();
    for variable in &own.env {
        env.retain(|known| known.name != variable.name);
        env.push(variable.clone());
    }
    Operand {
        image: image(defaults.image.as_ref(), own.image.as_ref()),
        env,
        args: if own.args.is_empty() { defaults.args.clone() } else { own.args.clone() },
        resources: own.resources.clone().or_else(|| defaults.resources.clone()),
    }
}

fn image(defaults: Option<&Image>, own: Option<&Image>) -> Option<Image> {
    let (Some(defaults), Some(own)) = (defaults, own) else {
        return own.or(defaults).cloned();
    };
    // A tag of the pool's own replaces a default digest, and the other way round: they mean the same thing.
    let pinned = own.tag.is_some() || own.digest.is_some();
    Some(Image {
        repository: own.repository.clone().or_else(|| defaults.repository.clone()),
        tag: if pinned { own.tag.clone() } else { defaults.tag.clone() },
        digest: if pinned { own.digest.clone() } else { defaults.digest.clone() },
    })
}

/// The labels that the policy wants published on a node, beside our own. Those that carry the model wait until it is known.
#[must_use]
pub fn published(policy: &ClusterGpuPolicy, pool: Option<&Pool>, model: Option<&str>) -> Labels {
    let of_all = policy.spec.node_labels.iter().map(|key| (key, None));
    let of_pool = pool.into_iter().flat_map(|pool| &pool.node_labels).map(|label| (&label.key, label.value.as_deref()));
    of_all.chain(of_pool).filter_map(|(key, value)| Some((key.clone(), value.or(model)?.to_owned()))).collect()
}
