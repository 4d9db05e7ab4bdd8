//! Health settings of a policy: the rules for the probe, and the consequences for the node.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use crate::{health::HealthRules, keys, open::is_default, schema::TaintKey};

/// The rules by which the health of GPUs is judged, and the consequences for the node.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// The number of a node's GPUs that must not be unhealthy for the node to be ready, as a number or as a percentage
    /// of the expected GPUs. Defaults to 100%.
    #[serde(rename = "minHealthyGPUs", default, skip_serializing_if = "Option::is_none")]
    #[schemars(extend("pattern" = "^([0-9]|[1-9][0-9]|100)%$", "minimum" = 0, "maximum" = 99))]
    pub min_healthy_gpus: Option<IntOrString>,
    /// What happens to a node with an unhealthy GPU until the GPU has recovered, beside the condition
    /// `gpu.nodestack.dev/GpuHealthy`. Defaults to nothing.
    #[serde(default, skip_serializing_if = "is_default")]
    pub on_unhealthy: OnUnhealthy,
    /// The rules for the probe.
    #[serde(flatten)]
    pub rules: HealthRules,
}

/// What happens to a node with an unhealthy GPU until the GPU has recovered.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct OnUnhealthy {
    /// The taint that the node gets: `{}` is `gpu.nodestack.dev/unhealthy:NoSchedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taint: Option<UnhealthyTaint>,
}

/// The taint of a node with an unhealthy GPU. The operator's pods tolerate it.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct UnhealthyTaint {
    /// The effect. Defaults to `NoSchedule`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
    /// The key. Defaults to `gpu.nodestack.dev/unhealthy`. Keys of kubernetes.io and k8s.io are reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<TaintKey>")]
    pub key: Option<String>,
}

impl UnhealthyTaint {
    /// Returns the key.
    pub fn key(&self) -> &str {
        self.key.as_deref().unwrap_or(keys::UNHEALTHY_TAINT)
    }
}

/// The effect of a taint on pods that do not tolerate it.
#[derive(Serialize, Deserialize, JsonSchema, IntoStaticStr, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaintEffect {
    /// No new pods are scheduled on the node.
    #[default]
    NoSchedule,
    /// New pods are scheduled on the node only if they fit on no other.
    PreferNoSchedule,
    /// No new pods are scheduled on the node, and running pods are evicted, including those that use healthy GPUs.
    NoExecute,
}
