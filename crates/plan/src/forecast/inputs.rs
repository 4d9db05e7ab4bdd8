//! The input of a forecast, and whether the API server would evict a pod.

use std::collections::BTreeMap;

use k8s_openapi::{api::policy::v1::PodDisruptionBudget, jiff::Timestamp};
use kube::{
    ResourceExt,
    core::{Selector, SelectorExt},
};

use crate::{
    catalogue::Catalogue,
    settings::Settings,
    world::{GpuPod, GpuPods, World},
};

#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    pub settings: &'a Settings,
    pub catalogue: &'a Catalogue,
    /// With the GPU pods of all nodes.
    pub world: &'a World,
    pub budgets: &'a [DisruptionBudget],
    /// When the policies are applied.
    pub now: Timestamp,
}

#[derive(Clone, Debug, Default)]
pub struct DisruptionBudget {
    namespace: String,
    name: String,
    selects: Selector,
    /// How many of its pods may be evicted at present.
    allowed: i32,
    healthy: i32,
    desired: i32,
}

impl DisruptionBudget {
    /// Returns `None` for a budget that selects no pod, or whose selector is invalid.
    pub fn of(budget: &PodDisruptionBudget) -> Option<Self> {
        let selector = budget.spec.as_ref()?.selector.clone()?;
        let status = budget.status.clone().unwrap_or_default();
        Some(Self {
            namespace: budget.namespace()?,
            name: budget.name_any(),
            selects: selector.try_into().ok()?,
            allowed: status.disruptions_allowed,
            healthy: status.current_healthy,
            desired: status.desired_healthy,
        })
    }

    fn covers(&self, pod: &GpuPod) -> bool {
        let namespace = pod.name.split_once('/').map(|(namespace, _)| namespace);
        namespace == Some(&self.namespace) && self.selects.matches(&pod.labels)
    }
}

/// Returns why GPU pods would not be evicted, by `namespace/name`. A budget that allows some evictions delays the others until the pods
/// have started elsewhere.
pub fn refused(world: &World, budgets: &[DisruptionBudget]) -> BTreeMap<String, String> {
    // The API server evicts a pod that has not started whatever its budgets.
    let pods = world.gpu_pods.values().flat_map(GpuPods::holders);
    pods.filter_map(|pod| Some((pod.name.clone(), refusal(pod, budgets)?))).collect()
}

fn refusal(pod: &GpuPod, budgets: &[DisruptionBudget]) -> Option<String> {
    let of_pod: Vec<&DisruptionBudget> = budgets.iter().filter(|budget| budget.covers(pod)).collect();
    match of_pod[..] {
        [] => None,
        [DisruptionBudget { name, allowed, healthy, desired, .. }] => (*allowed < 1).then(|| {
            format!(
                "the PodDisruptionBudget {name} allows no eviction at present: it requires {desired} healthy pods, and {healthy} are"
            )
        }),
        _ => {
            let names: Vec<_> = of_pod.iter().map(|budget| budget.name.as_str()).collect();
            Some(format!(
                "the API server evicts no pod that several PodDisruptionBudgets select: {}; let one of them select it",
                names.join(", ")
            ))
        }
    }
}
