//! The effective settings of a pool: its own fields over the defaults.

use gpu_operator_crd::{
    ClusterGpuPolicy, HealthRules,
    health::{CauseClasses, Thresholds, XidClasses},
    keys,
    policy::{
        DevicePlugin, Driver, DriverConfigMaps, DriverSource, ForeignStack, Health, Image, Mig, Operand, PluginFlags,
        Pool, RolloutStrategy, RuntimePaths, StartupTaint, Toolkit,
    },
};
use k8s_openapi::{
    api::core::v1::{EnvVar, Toleration},
    apimachinery::pkg::util::intstr::IntOrString,
};

use crate::desired::key::VariantKey;

/// Settings of a pool that are merged with the defaults.
trait Over: Sized {
    fn over(self, defaults: Self) -> Self;
}

impl<T> Over for Option<T> {
    fn over(self, default: Self) -> Self {
        self.or(default)
    }
}

impl<T> Over for Vec<T> {
    fn over(self, default: Self) -> Self {
        if self.is_empty() { default } else { self }
    }
}

/// Merges by field.
fn parts<T: Over>(own: Option<T>, defaults: Option<T>) -> Option<T> {
    match (own, defaults) {
        (Some(own), Some(defaults)) => Some(own.over(defaults)),
        (own, defaults) => own.or(defaults),
    }
}

fn whole<T: Default + PartialEq>(own: T, default: T) -> T {
    if own == T::default() { default } else { own }
}

/// Merges environment variables by name.
fn by_name(own: Vec<EnvVar>, mut defaults: Vec<EnvVar>) -> Vec<EnvVar> {
    defaults.retain(|known| own.iter().all(|variable| variable.name != known.name));
    defaults.extend(own);
    defaults
}

/// Implements [`Over`] by field: each as its type does, or by the named function.
macro_rules! by_field {
    ($($settings:ident { $($field:ident $(: $merge:ident)?),+ $(,)? })+) => {$(
        impl Over for $settings {
            fn over(self, defaults: Self) -> Self {
                Self { $($field: by_field!(@ self.$field, defaults.$field $(, $merge)?)),+ }
            }
        }
    )+};
    (@ $own:expr, $default:expr) => { $own.over($default) };
    (@ $own:expr, $default:expr, $merge:ident) => { $merge($own, $default) };
}

by_field! {
    Driver {
        source, version, channel, kernel_module, precompiled, config_maps, url, sha256, install_dir, operand,
    }
    DriverConfigMaps { kernel_modules, repositories, certificates }
    Toolkit {
        runtime, injection, runtime_class, set_as_default, install_dir, distribution, host_paths, operand,
    }
    RuntimePaths { config, drop_in, socket, nri_socket }
    DevicePlugin {
        flavor, resource_name, sharing: whole, mig: parts, flags: parts, container_metrics, health_monitoring, operand,
    }
    PluginFlags { fail_on_init_error, pass_device_specs, device_id_strategy }
    Operand { image: parts, env: by_name, args, resources }
    RolloutStrategy { max_parallel, max_unavailable, max_failures, gpu_pods: whole, canary, on_failure, paused, windows }
    Health { min_healthy_gpus, on_unhealthy: whole, rules }
    HealthRules { interval, confirm_intervals, clean_intervals, xids, causes, thresholds }
    XidClasses { ignore, warn, fatal }
    CauseClasses { ignore, warn, fatal }
    Thresholds {
        below_slowdown_celsius, below_shutdown_celsius, uncorrectable_ecc_errors, remapped_rows, retired_pages,
        pcie_replays_per_minute,
    }
}

impl Over for Image {
    fn over(self, defaults: Self) -> Self {
        // A pool's tag replaces a default digest, and vice versa, because both choose the version.
        let (tag, digest) = match (self.tag, self.digest) {
            (None, None) => (defaults.tag, defaults.digest),
            own => own,
        };
        Self { repository: self.repository.or(defaults.repository), tag, digest }
    }
}

impl Over for Mig {
    fn over(self, defaults: Self) -> Self {
        // A layout belongs to its mode and to its strategy.
        let inherits =
            self.mode.is_none() && self.layout.is_empty() && (self.strategy.is_none() || defaults.layout.is_empty());
        let strategy = self.strategy.or(defaults.strategy);
        Self { strategy, ..if inherits { defaults } else { self } }
    }
}

fn own<T: Default + Clone>(pool: Option<&Pool>, of: fn(&Pool) -> &T) -> T {
    pool.map(of).cloned().unwrap_or_default()
}

pub fn driver(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Driver {
    let own = own(pool, |pool| &pool.driver);
    let mut inherited = policy.spec.defaults.driver.clone();
    let default_source = inherited.source.unwrap_or_default();
    let source = own.source.unwrap_or(default_source);
    if own.version.is_some()
        && matches!(source, DriverSource::Auto | DriverSource::Container)
        && let Some(image) = &mut inherited.operand.image
    {
        // The default's tag or digest belongs to the default's version.
        (image.tag, image.digest) = (None, None);
    }
    // The fields that choose what is installed belong together: a pool that sets one takes none of the others from the
    // defaults.
    let chooses = own.version.is_some() || own.url.is_some() || own.channel.is_some() || own.sha256.is_some();
    if chooses {
        inherited.version = None;
    }
    if chooses || source != default_source {
        (inherited.channel, inherited.url, inherited.sha256) = (None, None, None);
    }
    if source != default_source {
        // An installer's image and arguments do not apply to another installer.
        (inherited.operand.image, inherited.operand.args) = (None, Vec::new());
    }
    if (source == DriverSource::Preinstalled) != (default_source == DriverSource::Preinstalled) {
        // An installer's folder is not the folder of the host's own driver.
        inherited.install_dir = None;
    }
    own.over(inherited)
}

pub fn pool_of<'p>(policy: &'p ClusterGpuPolicy, key: &VariantKey) -> Option<&'p Pool> {
    policy.spec.pools.iter().find(|pool| key.named && pool.name == key.pool)
}

/// Returns the policy's tolerations, if any, and those of taints that must not keep this operator's pods from a node that starts or
/// recovers.
pub fn tolerations(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Option<Vec<Toleration>> {
    let listed = pool.and_then(|pool| pool.tolerations.as_ref()).or(policy.spec.defaults.tolerations.as_ref())?;
    let mut keys = policy.spec.taint_keys();
    keys.insert(keys::UNHEALTHY_TAINT);
    keys.extend(policy.spec.readiness.startup_taint.as_ref().map(StartupTaint::key));
    let own = keys.into_iter().map(|key| Toleration {
        key: Some(key.to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    });
    Some(listed.iter().cloned().chain(own).collect())
}

pub fn priority_class<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p str {
    let own = pool.and_then(|pool| pool.priority_class_name.as_deref());
    own.or(policy.spec.defaults.priority_class_name.as_deref()).unwrap_or("system-node-critical")
}

pub fn is_precompiled(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> bool {
    let own = pool.and_then(|pool| pool.driver.precompiled);
    own.or(policy.spec.defaults.driver.precompiled).unwrap_or_default()
}

pub fn toolkit(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Toolkit {
    own(pool, |pool| &pool.toolkit).over(policy.spec.defaults.toolkit.clone())
}

pub fn device_plugin(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> DevicePlugin {
    let own = own(pool, |pool| &pool.device_plugin);
    let defaults = &policy.spec.defaults.device_plugin;
    // Settings of one plugin are not inherited by another plugin.
    let same = own.flavor.is_none_or(|flavor| flavor == defaults.flavor.unwrap_or_default());
    own.over(if same { defaults.clone() } else { DevicePlugin::default() })
}

pub fn foreign_stack(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> ForeignStack {
    pool.and_then(|pool| pool.foreign_stack).or(policy.spec.defaults.foreign_stack).unwrap_or_default()
}

pub fn health(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> Health {
    own(pool, |pool| &pool.health).over(policy.spec.health.clone())
}

/// The limits of both apply; see [`crate::rollout::terms`].
pub fn rollout(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> RolloutStrategy {
    own(pool, |pool| &pool.rollout).over(policy.spec.rollout.clone())
}

/// A percentage is rounded up; a number may be greater than `all`.
pub fn int_or_percent(wanted: &IntOrString, all: u32) -> u32 {
    match wanted {
        IntOrString::Int(number) => u32::try_from(*number).unwrap_or_default(),
        IntOrString::String(percent) => {
            let percent: u32 = percent.trim_end_matches('%').parse().unwrap_or(100);
            (all * percent).div_ceil(100)
        }
    }
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
            assert_eq!(read(own).over(read(defaults)), read(effective), "{own} over {defaults}");
        }
    }
}
