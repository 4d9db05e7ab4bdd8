//! What is read to explain a pod: the pod, its Events, and the node that it is assigned to, or else all nodes.

use std::sync::Arc;

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode};
use gpu_operator_plan::world::{NodeFacts, TrimmedNode, World};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Client, ResourceExt, api::ListParams};

use crate::{
    explain::error::ExplainError,
    read::{self, Listed, ReadError},
};

/// What is known about a pod.
#[derive(Clone, Debug)]
pub struct Facts {
    pub pod: Pod,
    /// Its Events, or why they are not known.
    pub events: Result<Vec<Event>, String>,
    /// The policies, and the node of the pod or all nodes.
    pub world: World,
    /// Why the world is incomplete.
    pub missing: Vec<String>,
}

pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<Facts, ExplainError> {
    let Some(pod) = read::get::<Pod>(client, Some(namespace), name).await? else {
        let list = format!("kubectl get pods --namespace {namespace}");
        return Err(ExplainError::NotFound { what: format!("pod {namespace}/{name}"), list });
    };
    let params = ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid().unwrap_or_default()));
    let events = read::list::<Event>(client, Some(namespace), params).await;
    let events = events.map(|listed| listed.items).map_err(|error| error.to_string());
    let mut facts = Facts { pod, events, world: World::default(), missing: Vec::new() };
    let node = facts.pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
    let policies = read::list::<ClusterGpuPolicy>(client, None, ListParams::default()).await;
    for policy in facts.known(policies).unwrap_or_default() {
        facts.world.policies.insert(policy.name_any().into(), Arc::new(policy));
    }
    let gpu_nodes = objects::<GpuNode>(client, node.as_deref()).await;
    if let Some(listed) = facts.checked(gpu_nodes) {
        facts.world.unreadable_gpu_nodes.extend(listed.unreadable.iter().map(|name| name.as_str().into()));
        for gpu_node in listed.items {
            facts.world.gpu_nodes.insert(gpu_node.name_any().into(), Arc::new(gpu_node));
        }
    }
    let nodes = objects::<TrimmedNode>(client, node.as_deref()).await;
    for node in facts.known(nodes).unwrap_or_default() {
        let node = NodeFacts::of(&node);
        facts.world.nodes.insert(node.name.clone(), Arc::new(node));
    }
    Ok(facts)
}

/// Reads one object, or all of a kind.
async fn objects<K>(client: &Client, name: Option<&str>) -> Result<Listed<K>, ReadError>
where
    K: kube::Resource<DynamicType = ()> + serde::de::DeserializeOwned + Clone + std::fmt::Debug,
{
    match name {
        Some(name) => {
            let items = read::get::<K>(client, None, name).await?.into_iter().collect();
            Ok(Listed { items, unreadable: Vec::new() })
        }
        None => read::list::<K>(client, None, ListParams::default()).await,
    }
}

impl Facts {
    /// Returns the objects that could be read, and records why others could not.
    fn known<K>(&mut self, read: Result<Listed<K>, ReadError>) -> Option<Vec<K>> {
        let listed = self.checked(read)?;
        self.missing.extend(listed.unreadable.iter().map(|name| format!("object {name} cannot be parsed")));
        Some(listed.items)
    }

    fn checked<K>(&mut self, read: Result<Listed<K>, ReadError>) -> Option<Listed<K>> {
        read.map_err(|error| self.missing.push(error.to_string())).ok()
    }
}
