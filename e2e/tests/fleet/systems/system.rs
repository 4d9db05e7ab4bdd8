//! An example policy with its nodes, and the models on them.

use std::{collections::BTreeMap, fs, path::Path};

use anyhow::{Context, Result, ensure};
use cluster::node::real_node::HostDriver;
use fleet::{FleetNode, MEMBER_LABEL, os};
use gpu_operator_crd::{ClusterGpuPolicy, Phase, keys, policy::Stage, report::HostRuntime};
use harness::wait::eventually;
use k8s_openapi::api::{
    apps::v1::DaemonSet,
    core::v1::{Node, Pod},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::support::{DEADLINE, Fixture, POLICY};

pub(super) const GKE: &str = "cloud.google.com/gke-accelerator";
/// PCI ids.
pub(super) const K80: &str = "102d";
pub(super) const P100: &str = "15f9";
pub(super) const K620: &str = "13bb";
pub(super) const GEFORCE: &str = "1e07";
pub(super) const T4: &str = "1eb8";
pub(super) const H100: &str = "2330";
pub(super) const A100: &str = "20b0";

/// Returns a node with an operating system.
pub(super) fn node(name: &str, gpu: &str, count: usize, system: (&str, &str)) -> FleetNode {
    FleetNode { os: os(system.0, system.1), ..FleetNode::with_gpus(name, gpu, count) }
}

pub(super) fn with_label(mut node: FleetNode, key: &str, value: &str) -> FleetNode {
    node.labels.insert(key.into(), value.into());
    node
}

pub(super) fn with_driver(mut node: FleetNode, version: &str) -> FleetNode {
    node.host_driver = HostDriver::Loaded(version.into());
    node
}

pub(super) fn with_runtime(mut node: FleetNode, runtime: &str) -> FleetNode {
    node.runtime = runtime.into();
    node
}

/// Returns a node whose image has NVIDIA's runtime as the default.
pub(super) fn with_host_runtime(mut node: FleetNode, file: &str) -> FleetNode {
    node.host_runtimes = vec![HostRuntime { file: file.into(), handler: "nvidia".into(), default: true }];
    node
}

/// An example policy and its nodes.
pub(super) struct System {
    pub(super) f: Fixture,
}

impl System {
    /// Adds the nodes, applies the example to only them, and waits until all of them are ready.
    pub(super) async fn ready(f: Fixture, example: &str, nodes: Vec<FleetNode>) -> Result<Self> {
        let names: Vec<String> = nodes.iter().map(|node| node.name.clone()).collect();
        f.fleet.join(nodes).await?;
        let system = Self { f };
        system.apply(example).await?;
        for name in names {
            system.until_ready(&name).await?;
        }
        eventually(DEADLINE, "a Ready policy", || async {
            let status = system.f.policy().await?.status.context("no status")?;
            let ready =
                status.conditions.iter().find(|condition| condition.type_ == "Ready").context("no such condition")?;
            ensure!(ready.status == "True", "{}: {}", ready.reason, ready.message);
            Ok(())
        })
        .await?;
        Ok(system)
    }

    pub(super) async fn apply(&self, example: &str) -> Result<()> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../examples/{example}.yaml"));
        let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
        let mut policy: ClusterGpuPolicy = serde_yaml::from_str(&text)?;
        policy.metadata.name = Some(POLICY.to_owned());
        let mut selector = policy.spec.node_selector.take().unwrap_or_default();
        selector.match_labels.insert(MEMBER_LABEL.0.to_owned(), MEMBER_LABEL.1.to_owned());
        policy.spec.node_selector = Some(selector);
        let apply = PatchParams::apply("test").force();
        self.f.policies().patch(POLICY, &apply, &Patch::Apply(&policy)).await?;
        Ok(())
    }

    pub(super) async fn until_ready(&self, node: &str) -> Result<()> {
        eventually(DEADLINE, &format!("{node} ready"), || async {
            let status = self.f.gpu_nodes().get(node).await?.status.unwrap_or_default();
            ensure!(status.phase == Phase::Ready, "{:?} {:?}: {}", status.phase, status.reason, status.message);
            Ok(())
        })
        .await
    }

    /// Returns the pod template of each stage's DaemonSets, by stage.
    pub(super) async fn stages(&self) -> Result<BTreeMap<String, Vec<DaemonSet>>> {
        let mut stages: BTreeMap<String, Vec<DaemonSet>> = BTreeMap::new();
        for set in self.f.daemon_sets().await?.into_values() {
            let stage = set.metadata.labels.as_ref().and_then(|labels| labels.get(keys::STAGE)).cloned();
            stages.entry(stage.unwrap_or_default()).or_default().push(set);
        }
        Ok(stages)
    }

    /// Checks the number of DaemonSets of each stage.
    pub(super) async fn has_stages(&self, wanted: &[(Stage, usize)]) -> Result<()> {
        let stages = self.stages().await?;
        let found: BTreeMap<&str, usize> = stages.iter().map(|(stage, sets)| (stage.as_str(), sets.len())).collect();
        let wanted: BTreeMap<&str, usize> = wanted.iter().map(|(stage, count)| (stage.as_str(), *count)).collect();
        ensure!(found == wanted, "{found:?}, expected {wanted:?}");
        Ok(())
    }

    /// Returns a node's GPUs as shown by `kubectl get nodes -o=custom-columns=…`.
    pub(super) async fn allocatable(&self, node: &str, resource: &str) -> Result<Option<String>> {
        let node = Api::<Node>::all(self.f.cluster.client()).get(node).await?;
        let allocatable = node.status.and_then(|status| status.allocatable).unwrap_or_default();
        Ok(allocatable.get(resource).map(|quantity| quantity.0.clone()))
    }

    pub(super) async fn label(&self, node: &str, key: &str) -> Result<Option<String>> {
        let node = Api::<Node>::all(self.f.cluster.client()).get(node).await?;
        Ok(node.metadata.labels.and_then(|labels| labels.get(key).cloned()))
    }

    /// Runs a user's pod that requests one of a resource on nodes with these labels, and returns its node.
    pub(super) async fn runs_on(&self, resource: &str, selector: Value) -> Result<String> {
        let pods = Api::<Pod>::namespaced(self.f.cluster.client(), "default");
        let pod = serde_json::from_value(json!({
            "metadata": {"generateName": "vectoradd-"},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": selector,
                "tolerations": [{"operator": "Exists"}],
                "containers": [{
                    "name": "vectoradd",
                    "image": "registry.example.com/cuda-sample:vectoradd",
                    "resources": {"limits": {resource: "1"}},
                }],
            },
        }))?;
        let name = pods.create(&PostParams::default(), &pod).await?.metadata.name.context("no name")?;
        eventually(DEADLINE, "a running pod", || async {
            let pod = pods.get(&name).await?;
            let phase = pod.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
            ensure!(phase == "Running", "{phase}: {:?}", pod.status.and_then(|status| status.conditions));
            pod.spec.and_then(|spec| spec.node_name).context("no node")
        })
        .await
    }

    pub(super) async fn end(self) -> Result<Fixture> {
        let pods = Api::<Pod>::namespaced(self.f.cluster.client(), "default");
        pods.delete_collection(&DeleteParams::default().grace_period(0), &ListParams::default()).await?;
        Ok(self.f)
    }
}

/// Returns a DaemonSet's pod template as JSON text, for searches.
pub(super) fn text(set: &DaemonSet) -> Result<String> {
    Ok(serde_json::to_string(&set.spec.as_ref().context("no spec")?.template)?)
}
