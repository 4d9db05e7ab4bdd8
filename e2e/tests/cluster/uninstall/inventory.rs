//! All that a cluster and its nodes have, to compare it before an installation and after the removal.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, NodeSpec, NodeStatus};
use kube::{Api, ResourceExt};

use crate::support::Fixture;

/// What remains, by a part of its line. docs/operate/uninstall.md lists it.
const REMAINS: [&str; 11] = [
    // The CRDs, unless the chart's value crds.keep is false, and what the API server derives from them.
    "apiservice.apiregistration.k8s.io/v1alpha1.gpu.nodestack.dev",
    "customresourcedefinition.apiextensions.k8s.io/clustergpupolicies.gpu.nodestack.dev",
    "customresourcedefinition.apiextensions.k8s.io/gpunodes.gpu.nodestack.dev",
    // The programs of the toolkit.
    " /usr/local/nvidia",
    // Empty folders.
    " /etc/containerd/conf.d",
    " /var/lib/gpu-operator",
    // In memory until the next reboot: folders of the driver's container, the device plugin's CDI specification, the record of the
    // runtime's restarts,
    " /run/nvidia",
    " /run/mellanox",
    " /run/cdi",
    " /run/gpu-operator",
    // and links to device nodes by their numbers.
    " /dev/char",
];

/// What remains on nodes that were in a DRA pool, in an earlier test: the driver's list of prepared claims, which are none.
const REMAINS_OF_DRA: &str = " /var/lib/kubelet/plugins/gpu.nvidia.com";

/// Kinds of objects that come and go by themselves.
const PASSING: [&str; 3] = ["events", "events.events.k8s.io", "componentstatuses"];

/// One line for each object, each field of a Node and each file that exists.
#[derive(Debug)]
pub struct Inventory(BTreeSet<String>);

impl Inventory {
    /// Lists what these nodes and their cluster have.
    pub async fn take(fixtures: &[&Fixture]) -> Result<Self> {
        let mut lines = BTreeSet::new();
        for f in fixtures {
            let name = f.host.name();
            lines.extend(of_node(&Api::<Node>::all(f.cluster.client()).get(&name).await?));
            lines.extend(f.host.inventory()?.into_iter().map(|line| format!("{name}: {line}")));
        }
        if let Some(f) = fixtures.first() {
            let kinds = f.cluster.kubectl(&["api-resources", "--verbs=list", "--output=name"])?;
            let kinds: Vec<_> = kinds.lines().filter(|kind| !PASSING.contains(kind)).collect();
            let objects = f.cluster.kubectl(&["get", &kinds.join(","), "--all-namespaces", "--output=name"])?;
            lines.extend(objects.lines().map(str::to_owned));
        }
        Ok(Self(lines))
    }

    /// Checks that nothing has a name that the operator or its operands give.
    pub fn is_bare(&self) -> Result<()> {
        let has_name = |line: &str| line.contains("nodestack") || line.contains("nvidia");
        let is_trace = |line: &&String| has_name(line) && !remains(line) && !line.contains(REMAINS_OF_DRA);
        let traces: Vec<_> = self.0.iter().filter(is_trace).collect();
        ensure!(traces.is_empty(), "{traces:#?}");
        Ok(())
    }

    /// Checks that this is what was there before, except for what remains, all of which is there.
    pub fn is_as(&self, before: &Self) -> Result<()> {
        let more: Vec<_> = self.0.difference(&before.0).filter(|line| !remains(line)).collect();
        let less: Vec<_> = before.0.difference(&self.0).filter(|line| !remains(line)).collect();
        ensure!(more.is_empty() && less.is_empty(), "more than before: {more:#?}\nless than before: {less:#?}");
        let stale: Vec<_> = REMAINS.iter().filter(|part| !self.0.iter().any(|line| line.contains(*part))).collect();
        ensure!(stale.is_empty(), "this does not remain any more: {stale:?}");
        Ok(())
    }
}

fn remains(line: &str) -> bool {
    REMAINS.iter().any(|part| line.contains(part))
}

/// Returns the fields of a Node that others than kubelet write, and the allocatable resources and runtime handlers.
fn of_node(node: &Node) -> Vec<String> {
    let name = node.name_any();
    let NodeSpec { taints, unschedulable, .. } = node.spec.clone().unwrap_or_default();
    let NodeStatus { conditions, allocatable, runtime_handlers, .. } = node.status.clone().unwrap_or_default();
    let labels = node.labels().iter().map(|(key, value)| format!("{name} label {key}={value}"));
    let annotations = node.annotations().keys().map(|key| format!("{name} annotation {key}"));
    let taints = taints.into_iter().flatten().map(|taint| format!("{name} taint {}={:?}", taint.key, taint.value));
    let cordon = unschedulable.map(|cordon| format!("{name} unschedulable {cordon}"));
    let conditions = conditions.into_iter().flatten().map(|condition| format!("{name} condition {}", condition.type_));
    // Kubelet publishes a resource without a plugin as 0, until it is started again.
    let resources = allocatable.into_iter().flatten().filter(|(_, quantity)| quantity.0 != "0");
    let resources = resources.map(|(key, _)| format!("{name} allocatable {key}"));
    let handlers = runtime_handlers.into_iter().flatten().filter_map(|handler| handler.name);
    let handlers = handlers.map(|handler| format!("{name} runtime handler {handler:?}"));
    labels.chain(annotations).chain(taints).chain(cordon).chain(conditions).chain(resources).chain(handlers).collect()
}
