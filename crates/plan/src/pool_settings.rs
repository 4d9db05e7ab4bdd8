//! The effective settings of a pool: a member that the pool sets replaces the one of the policy as a whole.

use gpu_operator_crd::{
    ClusterGpuPolicy, keys,
    policy::{Allocation, DevicePlugin, Driver, ForeignStack, Health, Pool, RolloutStrategy, StartupTaint, Toolkit},
};
use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::util::intstr::IntOrString};

#[derive(Debug)]
pub struct PoolSettings<'p> {
    pub policy: &'p ClusterGpuPolicy,
    /// `None` for the implicit pools of models.
    pub pool: Option<&'p Pool>,
    pub driver: &'p Driver,
    pub toolkit: &'p Toolkit,
    pub device_plugin: &'p DevicePlugin,
    pub allocation: &'p Allocation,
    pub foreign_stack: ForeignStack,
    pub priority_class: &'p str,
    pub health: &'p Health,
    /// The policy's limits apply in addition; see [`crate::rollout::terms`].
    pub rollout: &'p RolloutStrategy,
    pub tolerations: Vec<Toleration>,
}

impl<'p> PoolSettings<'p> {
    /// Returns how many GPUs the pool promises of each node.
    pub fn promised_gpus(&self) -> Option<u32> {
        self.pool?.gpus_per_node
    }

    pub fn of(policy: &'p ClusterGpuPolicy, pool: Option<&'p Pool>) -> Self {
        let (spec, defaults) = (&policy.spec, &policy.spec.defaults);
        let priority_class = pool.and_then(|pool| pool.priority_class_name.as_deref());
        let listed = pool.and_then(|pool| pool.tolerations.as_ref()).or(defaults.tolerations.as_ref());
        Self {
            policy,
            pool,
            driver: pool.and_then(|pool| pool.driver.as_ref()).unwrap_or(&defaults.driver),
            toolkit: pool.and_then(|pool| pool.toolkit.as_ref()).unwrap_or(&defaults.toolkit),
            device_plugin: pool.and_then(|pool| pool.device_plugin.as_ref()).unwrap_or(&defaults.device_plugin),
            allocation: pool.and_then(|pool| pool.allocation.as_ref()).unwrap_or(&defaults.allocation),
            foreign_stack: pool.and_then(|pool| pool.foreign_stack).or(defaults.foreign_stack).unwrap_or_default(),
            priority_class: priority_class
                .or(defaults.priority_class_name.as_deref())
                .unwrap_or("system-node-critical"),
            health: pool.and_then(|pool| pool.health.as_ref()).unwrap_or(&spec.health),
            rollout: pool.and_then(|pool| pool.rollout.as_ref()).unwrap_or(&spec.rollout),
            tolerations: tolerations(policy, listed),
        }
    }
}

/// Returns the user's tolerations, and those of taints that must not keep this operator's pods from a node that starts or recovers. By
/// default, operands run on every GPU node.
fn tolerations(policy: &ClusterGpuPolicy, listed: Option<&Vec<Toleration>>) -> Vec<Toleration> {
    let exists = |key| Toleration { key, operator: Some("Exists".to_owned()), ..Toleration::default() };
    let Some(listed) = listed else { return vec![exists(None)] };
    let mut keys = policy.spec.taint_keys();
    keys.insert(keys::UNHEALTHY_TAINT);
    keys.extend(policy.spec.readiness.startup_taint.as_ref().map(StartupTaint::key));
    listed.iter().cloned().chain(keys.into_iter().map(|key| exists(Some(key.to_owned())))).collect()
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
