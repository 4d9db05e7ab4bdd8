//! The effective settings of a pool: a member that the pool sets replaces the one of the policy as a whole.

use gpu_operator_crd::{
    ClusterGpuPolicy, keys,
    policy::{DevicePlugin, Driver, ForeignStack, Health, Pool, RolloutStrategy, StartupTaint, Toolkit},
};
use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::util::intstr::IntOrString};

use crate::desired::key::VariantKey;

pub fn pool_of<'p>(policy: &'p ClusterGpuPolicy, key: &VariantKey) -> Option<&'p Pool> {
    policy.spec.pools.iter().find(|pool| key.named && pool.name == key.pool)
}

pub fn driver<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p Driver {
    pool.and_then(|pool| pool.driver.as_ref()).unwrap_or(&policy.spec.defaults.driver)
}

pub fn toolkit<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p Toolkit {
    pool.and_then(|pool| pool.toolkit.as_ref()).unwrap_or(&policy.spec.defaults.toolkit)
}

pub fn device_plugin<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p DevicePlugin {
    pool.and_then(|pool| pool.device_plugin.as_ref()).unwrap_or(&policy.spec.defaults.device_plugin)
}

pub fn foreign_stack(policy: &ClusterGpuPolicy, pool: Option<&Pool>) -> ForeignStack {
    pool.and_then(|pool| pool.foreign_stack).or(policy.spec.defaults.foreign_stack).unwrap_or_default()
}

pub fn priority_class<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p str {
    let own = pool.and_then(|pool| pool.priority_class_name.as_deref());
    own.or(policy.spec.defaults.priority_class_name.as_deref()).unwrap_or("system-node-critical")
}

pub fn health<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p Health {
    pool.and_then(|pool| pool.health.as_ref()).unwrap_or(&policy.spec.health)
}

/// The policy's limits apply in addition; see [`crate::rollout::terms`].
pub fn rollout<'p>(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> &'p RolloutStrategy {
    pool.and_then(|pool| pool.rollout.as_ref()).unwrap_or(&policy.spec.rollout)
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
