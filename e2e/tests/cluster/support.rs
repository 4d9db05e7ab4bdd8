//! Helpers for all tests: the node of a test, and what it does with it.

mod ask;
mod clean;
mod pods;
mod policy;
mod run;
mod wait;

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result};
use cluster::node::real_node::RealNode;
use cluster_client::handle::Cluster;
use gpu_operator_common::quantity;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, GpuNodeStatus, keys, policy::Stage};
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::api::resource::Quantity};
use kube::{Api, ResourceExt};

pub use self::{
    pods::{is_in_init, last_init_container_started, started},
    run::{
        alone, everywhere, install_chart, long_test, long_test_on_two_nodes, test, test_beside_the_operator,
        test_on_containerd_1, test_on_docker,
    },
};

/// The number of GPUs of the node.
pub const GPUS: u32 = 8;
/// The stages of a policy without MPS.
pub const PLAIN_STAGES: [Stage; 3] = [Stage::Driver, Stage::Toolkit, Stage::DevicePlugin];
/// The driver that an H100 gets by default.
pub const DEFAULT_DRIVER: &str = "595.91.07";
/// The driver version of Google's installer, for examples without a version.
pub const GOOGLES_DRIVER: &str = "535.309.01";
/// A checksum for `.run` files, which the stand-in neither downloads nor checks.
pub const UNCHECKED: &str = "0f23456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
/// The label by which a policy or a pod selects one node.
pub const HOSTNAME: &str = "kubernetes.io/hostname";
/// The label of the detector's pods.
pub const DETECTOR_PODS: &str = "app.kubernetes.io/name=gpu-detector";
/// The label of the probe's pods.
pub const PROBE_PODS: &str = "app.kubernetes.io/name=nvml-probe";
/// The time limit from applying a policy until its node is ready: many times what that takes, so that other work on the machine is no
/// failure.
pub const READY: Duration = Duration::from_mins(5);
/// The time limit for a failure to be reported.
pub const SHOWN: Duration = Duration::from_mins(3);

/// What is between the names of two nodes' policies in that of a policy of both.
const AND: &str = "-and-";

/// A node of the cluster, and the operations of its test.
pub struct Fixture {
    pub cluster: Cluster,
    pub host: RealNode,
    /// The name of the policy that selects only this node.
    pub policy: String,
}

impl Fixture {
    fn on(cluster: &Cluster, host: RealNode) -> Self {
        let policy = host.name().replace("gpu-node", "fleet");
        Self { cluster: cluster.clone(), host, policy }
    }

    /// Returns the same node with the policy of another name.
    pub fn successor(&self) -> Self {
        Self { cluster: self.cluster.clone(), host: self.host.clone(), policy: format!("{}-successor", self.policy) }
    }

    /// Returns the name of a policy for this node and another one.
    pub fn policy_with(&self, other: &Self) -> String {
        format!("{}{AND}{}", self.policy, other.policy)
    }

    /// Returns the namespace of the test's own pods.
    pub fn users(&self) -> String {
        format!("users-of-{}", self.host.name())
    }

    pub fn policies(&self) -> Api<ClusterGpuPolicy> {
        Api::all(self.cluster.client())
    }

    pub async fn node(&self) -> Result<Node> {
        Ok(Api::<Node>::all(self.cluster.client()).get(&self.host.name()).await?)
    }

    /// Returns the node's status; fails if it has none.
    pub async fn status(&self) -> Result<GpuNodeStatus> {
        let gpu_node = Api::<GpuNode>::all(self.cluster.client()).get(&self.host.name()).await?;
        gpu_node.status.context("no status")
    }

    /// Returns the allocatable GPUs.
    pub async fn allocatable(&self) -> Result<u32> {
        Ok(gpus_among(self.node().await?.status.and_then(|status| status.allocatable)))
    }

    /// Returns the GPUs that are registered with kubelet, healthy or not.
    pub async fn capacity(&self) -> Result<u32> {
        Ok(gpus_among(self.node().await?.status.and_then(|status| status.capacity)))
    }

    /// Returns the label of the objects of the node's policy.
    pub fn of_policy(&self) -> String {
        format!("{}={}", keys::POLICY, self.policy)
    }

    /// Returns the node's labels that the operator has set or published for a policy.
    pub async fn operators_labels(&self, published: &[&str]) -> Result<BTreeMap<String, String>> {
        let mut labels = self.node().await?.labels().clone();
        labels.retain(|key, _| {
            key.starts_with(keys::PREFIX) && key != keys::PRESENT || published.contains(&key.as_str())
        });
        Ok(labels)
    }
}

fn gpus_among(resources: Option<BTreeMap<String, Quantity>>) -> u32 {
    let gpus = resources.unwrap_or_default().remove(keys::GPU_RESOURCE);
    gpus.and_then(|quantity| quantity::count(&quantity.0).ok()).unwrap_or_default()
}
