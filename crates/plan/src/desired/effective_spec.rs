//! The effective settings of a pool: its own fields over the defaults.

use gpu_operator_crd::{
    ClusterGpuPolicy,
    policy::{
        DevicePlugin, Driver, DriverConfigMaps, DriverSource, ForeignStack, Health, Image, Mig, Operand, Pool,
        RuntimePaths, Sharing, Toolkit,
    },
};

use k8s_openapi::api::core::v1::Toleration;

use crate::desired::key::VariantKey;

/// Returns the driver's settings: the pool's fields over the defaults.
#[must_use]
pub fn driver(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Driver {
    let defaults = &policy.spec.defaults.driver;
    let Some(own) = pool.map(|pool| &pool.driver) else {
        return defaults.clone();
    };
    let source = own.source.or(defaults.source);
    let same_source = source.unwrap_or_default() == defaults.source.unwrap_or_default();
    let mut inherited = defaults.operand.clone();
    let holds_driver = matches!(source.unwrap_or_default(), DriverSource::Auto | DriverSource::Container);
    if own.version.is_some()
        && holds_driver
        && let Some(image) = &mut inherited.image
    {
        // The default's tag or digest belongs to the default's version.
        (image.tag, image.digest) = (None, None);
    }
    if !same_source {
        // An installer's image and arguments do not apply to another installer.
        (inherited.image, inherited.args) = (None, Vec::new());
    }
    // The fields that choose what is installed belong together: a pool that sets one takes none of the others from the
    // defaults.
    let chooses = own.version.is_some() || own.url.is_some() || own.channel.is_some() || own.sha256.is_some();
    let version = defaults.version.clone().filter(|_| !chooses);
    let same_file = |field: &Option<String>| field.clone().filter(|_| !chooses && same_source);
    let (own_maps, maps) = (own.config_maps.clone(), defaults.config_maps.clone());
    Driver {
        source,
        version: own.version.clone().or(version),
        channel: own.channel.or(defaults.channel.filter(|_| !chooses && same_source)),
        kernel_module: own.kernel_module.or(defaults.kernel_module),
        precompiled: own.precompiled.or(defaults.precompiled),
        config_maps: DriverConfigMaps {
            kernel_modules: own_maps.kernel_modules.or(maps.kernel_modules),
            repositories: own_maps.repositories.or(maps.repositories),
            certificates: own_maps.certificates.or(maps.certificates),
        },
        url: own.url.clone().or_else(|| same_file(&defaults.url)),
        sha256: own.sha256.clone().or_else(|| same_file(&defaults.sha256)),
        // An installer's folder is not the folder of the host's own driver.
        install_dir: own.install_dir.clone().or_else(|| {
            let by_host = |source: Option<DriverSource>| source == Some(DriverSource::Preinstalled);
            defaults.install_dir.clone().filter(|_| by_host(source) == by_host(defaults.source))
        }),
        operand: operand(&inherited, Some(&own.operand)),
    }
}

/// Returns the named pool of a variant.
#[must_use]
pub fn pool_of<'p>(policy: &'p ClusterGpuPolicy, key: &VariantKey) -> Option<&'p Pool> {
    policy.spec.pools.iter().find(|pool| key.named && pool.name == key.pool)
}

/// Returns the tolerations of operands: the pool's list instead of the default.
#[must_use]
pub fn tolerations<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> Option<&'p Vec<Toleration>> {
    pool.and_then(|pool| pool.tolerations.as_ref()).or(policy.spec.defaults.tolerations.as_ref())
}

/// Returns the priority class of operands: the pool's instead of the default.
#[must_use]
pub fn priority_class<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p str {
    let own = pool.and_then(|pool| pool.priority_class_name.as_deref());
    own.or(policy.spec.defaults.priority_class_name.as_deref()).unwrap_or("system-node-critical")
}

/// Returns whether precompiled drivers are enabled: the pool's field over the default.
#[must_use]
pub fn is_precompiled(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> bool {
    let own = pool.and_then(|pool| pool.driver.precompiled);
    own.or(policy.spec.defaults.driver.precompiled).unwrap_or_default()
}

/// Returns the container toolkit's settings: the pool's fields over the defaults.
#[must_use]
pub fn toolkit(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Toolkit {
    let defaults = &policy.spec.defaults.toolkit;
    let Some(own) = pool.map(|pool| &pool.toolkit) else {
        return defaults.clone();
    };
    Toolkit {
        runtime: own.runtime.or(defaults.runtime),
        injection: own.injection.or(defaults.injection),
        runtime_class: own.runtime_class.clone().or_else(|| defaults.runtime_class.clone()),
        set_as_default: own.set_as_default.or(defaults.set_as_default),
        install_dir: own.install_dir.clone().or_else(|| defaults.install_dir.clone()),
        distribution: own.distribution.or(defaults.distribution),
        host_paths: runtime_paths(&defaults.host_paths, &own.host_paths),
        operand: operand(&defaults.operand, Some(&own.operand)),
    }
}

fn runtime_paths(defaults: &RuntimePaths, own: &RuntimePaths) -> RuntimePaths {
    let path = |of: fn(&RuntimePaths) -> &Option<String>| of(own).clone().or_else(|| of(defaults).clone());
    RuntimePaths {
        config: path(|paths| &paths.config),
        drop_in: path(|paths| &paths.drop_in),
        socket: path(|paths| &paths.socket),
        nri_socket: path(|paths| &paths.nri_socket),
    }
}

/// Returns the device plugin's settings: the pool's fields over the defaults.
#[must_use]
pub fn device_plugin(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> DevicePlugin {
    let defaults = &policy.spec.defaults.device_plugin;
    let none = DevicePlugin::default();
    let own = pool.map_or(&none, |pool| &pool.device_plugin);
    let flavor = own.flavor.or(defaults.flavor);
    // Settings of one plugin are not inherited by another plugin.
    let same = own.flavor.is_none() || defaults.flavor.unwrap_or_default() == flavor.unwrap_or_default();
    let inherited = if same { defaults } else { &none };
    DevicePlugin {
        flavor,
        resource_name: own.resource_name.clone().or_else(|| inherited.resource_name.clone()),
        sharing: if own.sharing == Sharing::default() { &inherited.sharing } else { &own.sharing }.clone(),
        mig: mig(inherited.mig.as_ref(), own.mig.as_ref()),
        flags: match (own.flags, inherited.flags) {
            (Some(own), Some(inherited)) => Some(own.or(inherited)),
            (own, inherited) => own.or(inherited),
        },
        container_metrics: own.container_metrics.clone().or_else(|| inherited.container_metrics.clone()),
        health_monitoring: own.health_monitoring.or(inherited.health_monitoring),
        operand: operand(&inherited.operand, Some(&own.operand)),
    }
}

fn mig(defaults: Option<&Mig>, own: Option<&Mig>) -> Option<Mig> {
    let (Some(defaults), Some(own)) = (defaults, own) else {
        return own.or(defaults).cloned();
    };
    // A layout belongs to its mode and to its strategy.
    let keeps = own.mode.is_none() && own.layout.is_empty() && (own.strategy.is_none() || defaults.layout.is_empty());
    let Mig { mode, layout, .. } = if keeps { defaults } else { own }.clone();
    Some(Mig { strategy: own.strategy.or(defaults.strategy), mode, layout })
}

/// Returns how third-party stacks are handled: the pool's field over the default.
#[must_use]
pub fn foreign_stack(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> ForeignStack {
    pool.and_then(|pool| pool.foreign_stack).or(policy.spec.defaults.foreign_stack).unwrap_or_default()
}

/// Returns the settings of GPU health: the pool's fields over the policy's.
#[must_use]
pub fn health(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Health {
    let whole = &policy.spec.health;
    pool.map_or_else(|| whole.clone(), |pool| pool.health.over(whole))
}

/// Returns an operand's settings: the image is merged by field, the environment by name; arguments and resources are
/// replaced as a whole.
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
    // A pool's tag replaces a default digest, and vice versa, because both choose the version.
    let pinned = own.tag.is_some() || own.digest.is_some();
    Some(Image {
        repository: own.repository.clone().or_else(|| defaults.repository.clone()),
        tag: if pinned { own.tag.clone() } else { defaults.tag.clone() },
        digest: if pinned { own.digest.clone() } else { defaults.digest.clone() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_inherits_mig_mode_layout_and_strategy_together() {
        const LAYOUT: &str = "{strategy: Single, layout: [{profiles: [{profile: 7g.80gb, count: 1}]}]}";
        const OTHER: &str =
            "{strategy: Mixed, mode: Layout, layout: [{devices: [0], profiles: [{profile: 1g.10gb, count: 7}]}]}";
        for (defaults, own, effective) in [
            (LAYOUT, "{}", LAYOUT),
            ("{}", LAYOUT, LAYOUT),
            (LAYOUT, OTHER, OTHER),
            (OTHER, LAYOUT, LAYOUT),
            (LAYOUT, "{mode: Disabled}", "{strategy: Single, mode: Disabled}"),
            (OTHER, "{mode: Unmanaged}", "{strategy: Mixed, mode: Unmanaged}"),
            (OTHER, "{strategy: Single}", "{strategy: Single}"),
            ("{mode: Disabled}", "{strategy: Single}", "{strategy: Single, mode: Disabled}"),
            ("{mode: Disabled}", LAYOUT, LAYOUT),
        ] {
            let read = |text: &str| -> Mig { serde_yaml::from_str(text).unwrap() };
            let merged = mig(Some(&read(defaults)), Some(&read(own)));
            assert_eq!(merged, Some(read(effective)), "{own} over {defaults}");
        }
    }
}
