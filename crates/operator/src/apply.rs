//! Apply: carries out a plan. All writes use server-side apply, so that repeating a write after a crash changes nothing. If
//! a write fails, the other objects are still written.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream};
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GROUP, GpuNode, GpuNodeSpec, GpuNodeStatus, NodeName, PolicyName,
    VERSION, keys,
};
use gpu_operator_plan::{
    Plan,
    output::{daemon_sets::DaemonSetWrite, node_health::NodeHealthWrite, node_labels::LabelWrite},
    world::{HealthCondition, TaintFact, TrimmedNode},
};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Node, Pod},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time},
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, PropagationPolicy},
    core::PartialObjectMetaExt,
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    error::{Error, request},
    watch::{Answer, Mirrors},
};

/// The maximum number of concurrent writes.
const AT_ONCE: usize = 16;

/// The kind of the object of a write, a label value of a metric.
pub type Target = &'static str;

/// The result of one write.
#[derive(Debug)]
pub struct Written {
    /// The kind of the object.
    pub target: Target,
    /// Whether the write succeeded.
    pub result: Result<(), Error>,
}

type Write<'a> = BoxFuture<'a, Written>;

/// Carries out plans, and passes the answers of the API server to the mirrors.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    namespace: String,
    mirrors: Arc<Mirrors>,
}

impl Writer {
    /// Creates a writer that writes through `client`, creates namespaced objects in `namespace`, and updates `mirrors` with every
    /// answer.
    #[must_use]
    pub fn new(client: Client, namespace: String, mirrors: Arc<Mirrors>) -> Self {
        Self { client, namespace, mirrors }
    }

    /// Carries out a plan and returns the result of each write.
    ///
    /// Writes that depend on others come later. Finalizers are added first and removed last. Labels are written after the
    /// DaemonSets that they name, and only if the GpuNode's spec, which records the reason, could be written. Status is written
    /// after everything that it reports.
    pub async fn apply(&self, plan: &Plan) -> Vec<Written> {
        let finalizers = |on: bool| plan.finalizers.iter().filter(move |(_, put)| **put == on);
        let sets = plan.daemon_sets.iter().map(|(name, write)| self.daemon_set(name, write));
        let classes = plan.runtime_classes.iter().map(|(name, class)| self.runtime_class(name, class));
        let statuses = plan.gpu_nodes.iter().filter_map(|(name, write)| Some((name, write.status.as_ref()?)));
        let mut written = carry_out(finalizers(true).map(|(name, _)| self.finalizer(name, true))).await;
        written.extend(carry_out(sets.chain(classes)).await);
        let (unrecorded, specs) = self.gpu_node_specs(plan).await;
        written.extend(specs);
        // Labels start a node's update. Other nodes of the pool wait for it only if it is recorded in the GpuNode's spec.
        let labels = plan.labels.iter().filter(|(name, _)| !unrecorded.contains(name));
        let health = plan.node_health.iter().flat_map(|(name, write)| self.node_health(name, write));
        written.extend(carry_out(labels.map(|(name, write)| self.labels(name, write)).chain(health)).await);
        written.extend(
            carry_out(
                statuses
                    .map(|(name, status)| self.gpu_node_status(name, status))
                    .chain(plan.prune.iter().map(|name| self.prune(name)))
                    .chain(plan.prune_classes.iter().map(|name| self.prune_class(name)))
                    .chain(plan.recreate.iter().map(|name| self.recreate(name)))
                    .chain(plan.pods.iter().map(|(name, pod)| self.pod(name, pod))),
            )
            .await,
        );
        // A policy's status summarizes its nodes, so it is written after the status of its GpuNodes.
        written.extend(carry_out(plan.policies.iter().map(|(name, status)| self.policy_status(name, status))).await);
        written.extend(carry_out(finalizers(false).map(|(name, _)| self.finalizer(name, false))).await);
        written
    }

    /// Writes the GpuNodes' specs. Returns the nodes whose spec is not written, and the results of the writes.
    async fn gpu_node_specs<'p>(&self, plan: &'p Plan) -> (BTreeSet<&'p NodeName>, Vec<Written>) {
        let specs = plan.gpu_nodes.iter().filter_map(|(name, write)| Some((name, write.spec.as_ref()?)));
        let begins = |spec: &(GpuNodeSpec, OwnerReference)| spec.0.rollout.is_some();
        // Ended updates are written before new ones, so that no reader sees two nodes of a pool being updated.
        let (later, first): (Vec<_>, Vec<_>) = specs.partition(|(_, spec)| begins(spec));
        let named = |(name, write): (_, &'p (GpuNodeSpec, OwnerReference))| async move {
            let (spec, owner) = write;
            (name, self.gpu_node_spec(name, spec, owner).await)
        };
        let mut ended = carry_out(first.into_iter().map(named)).await;
        let mut unrecorded = BTreeSet::new();
        if ended.iter().all(|(_, written)| written.result.is_ok()) {
            ended.extend(carry_out(later.into_iter().map(named)).await);
        } else {
            // If the write of an ended update failed, the update is still recorded. The next pass retries.
            unrecorded.extend(later.into_iter().map(|(name, _)| name));
        }
        unrecorded.extend(ended.iter().filter(|(_, written)| written.result.is_err()).map(|(name, _)| *name));
        (unrecorded, ended.into_iter().map(|(_, written)| written).collect())
    }

    fn finalizer<'a>(&'a self, name: &'a PolicyName, on: bool) -> Write<'a> {
        // A separate field manager, because the next apply by the main one would otherwise remove the finalizer.
        let manager = format!("{}/finalizer", keys::MANAGER);
        let finalizers = if on { vec![keys::FINALIZER] } else { vec![] };
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterGpuPolicy",
            "metadata": {"name": name, "finalizers": finalizers},
        });
        self.write("ClusterGpuPolicy", format!("set the finalizer of policy {name}"), async move {
            let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
            let policy = api.patch(name.as_str(), &PatchParams::apply(&manager).force(), &Patch::Apply(&body)).await?;
            // Removing the last finalizer may delete the policy.
            Ok(if on { Answer::Policy(Box::new(policy)) } else { Answer::Nothing })
        })
    }

    fn daemon_set<'a>(&'a self, name: &'a str, write: &'a DaemonSetWrite) -> Write<'a> {
        self.write("DaemonSet", format!("apply DaemonSet {name}"), async move {
            let api = Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace);
            let mut set = api.patch(name, &params(), &Patch::Apply(&write.set)).await?;
            if write.whole {
                // Apply has restored the fields of this operator. Fields that other managers added are only removed by replacing
                // the whole spec.
                let operation = json!([{"op": "replace", "path": "/spec", "value": write.set.spec}]);
                let patch = serde_json::from_value(operation).map_err(kube::Error::SerdeError)?;
                let params = PatchParams { field_manager: Some(keys::MANAGER.to_owned()), ..PatchParams::default() };
                set = api.patch(name, &params, &Patch::Json::<()>(patch)).await?;
            }
            Ok(Answer::DaemonSet(Box::new(set)))
        })
    }

    fn prune<'a>(&'a self, name: &'a str) -> Write<'a> {
        self.write("DaemonSet", format!("delete DaemonSet {name}"), async move {
            let params =
                DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
            delete(&Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace), name, &params).await
        })
    }

    fn runtime_class<'a>(&'a self, name: &'a str, class: &'a RuntimeClass) -> Write<'a> {
        self.write("RuntimeClass", format!("apply RuntimeClass {name}"), async move {
            let api = Api::<RuntimeClass>::all(self.client.clone());
            // Without force: a RuntimeClass that another user created meanwhile with a different handler is kept.
            let class = api.patch(name, &PatchParams::apply(keys::MANAGER), &Patch::Apply(class)).await?;
            Ok(Answer::RuntimeClass(Box::new(class)))
        })
    }

    fn prune_class<'a>(&'a self, name: &'a str) -> Write<'a> {
        self.write("RuntimeClass", format!("delete RuntimeClass {name}"), async move {
            delete(&Api::<RuntimeClass>::all(self.client.clone()), name, &DeleteParams::default()).await
        })
    }

    fn recreate<'a>(&'a self, name: &'a str) -> Write<'a> {
        self.write("Pod", format!("delete pod {name}"), async move {
            delete(&Api::<Pod>::namespaced(self.client.clone(), &self.namespace), name, &DeleteParams::default()).await
        })
    }

    fn pod<'a>(&'a self, name: &'a str, pod: &'a Pod) -> Write<'a> {
        self.write("Pod", format!("create pod {name}"), async move {
            let params = PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() };
            match Api::<Pod>::namespaced(self.client.clone(), &self.namespace).create(&params, pod).await {
                // It was created recently, and the watch has not reported it yet.
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Answer::Nothing),
                made => Ok(Answer::Pod(Box::new(made?))),
            }
        })
    }

    fn gpu_node_spec<'a>(&'a self, name: &'a NodeName, spec: &'a GpuNodeSpec, owner: &'a OwnerReference) -> Write<'a> {
        let mut gpu_node = GpuNode::new(name.as_str(), spec.clone());
        gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
        self.write("GpuNode", format!("apply the spec of GpuNode {name}"), async move {
            let api = Api::<GpuNode>::all(self.client.clone());
            Ok(Answer::GpuNode(Box::new(api.patch(name.as_str(), &params(), &Patch::Apply(&gpu_node)).await?)))
        })
    }

    fn gpu_node_status<'a>(&'a self, name: &'a NodeName, status: &'a GpuNodeStatus) -> Write<'a> {
        let body = status_body("GpuNode", name.as_str(), &json!(status));
        self.write("GpuNode", format!("apply the status of GpuNode {name}"), async move {
            let api = Api::<GpuNode>::all(self.client.clone());
            Ok(Answer::GpuNode(Box::new(api.patch_status(name.as_str(), &params(), &Patch::Apply(&body)).await?)))
        })
    }

    fn policy_status<'a>(&'a self, name: &'a PolicyName, status: &'a ClusterGpuPolicyStatus) -> Write<'a> {
        let body = status_body("ClusterGpuPolicy", name.as_str(), &json!(status));
        self.write("ClusterGpuPolicy", format!("apply the status of policy {name}"), async move {
            let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
            Ok(Answer::Policy(Box::new(api.patch_status(name.as_str(), &params(), &Patch::Apply(&body)).await?)))
        })
    }

    fn labels<'a>(&'a self, name: &'a NodeName, planned: &'a LabelWrite) -> Write<'a> {
        self.write("Node", format!("label node {name}"), async move {
            let labels = (!planned.labels.is_empty()).then(|| planned.labels.clone());
            // Without the uid, apply would try to recreate a deleted Node, and the API server would report a missing permission
            // instead of a conflict.
            let uid = Some(planned.uid.clone());
            let meta = ObjectMeta { labels, uid, ..ObjectMeta::default() }.into_request_partial::<Node>();
            let params = PatchParams { force: planned.force, ..PatchParams::apply(keys::LABEL_MANAGER) };
            let node = Api::<TrimmedNode>::all(self.client.clone())
                .patch(name.as_str(), &params, &Patch::Apply(&meta))
                .await?;
            Ok(Answer::Node(Box::new(node)))
        })
    }

    fn node_health<'a>(&'a self, name: &'a NodeName, write: &'a NodeHealthWrite) -> impl Iterator<Item = Write<'a>> {
        let condition = write.condition.as_ref().map(|condition| self.condition(name, condition.as_ref()));
        condition.into_iter().chain(write.taint.as_ref().map(|own| self.taint(name, own.as_ref())))
    }

    fn condition<'a>(&'a self, name: &'a NodeName, condition: Option<&'a HealthCondition>) -> Write<'a> {
        let conditions: Vec<_> = condition
            .map(|HealthCondition { status, reason, message, since }| {
                let kind = keys::HEALTH_CONDITION;
                let since = since.map(Time);
                json!({"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": since})
            })
            .into_iter()
            .collect();
        let body = json!({
            "apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": conditions},
        });
        self.write("Node", format!("set the health condition of node {name}"), async move {
            let params = PatchParams::apply(keys::HEALTH_MANAGER).force();
            let api = Api::<TrimmedNode>::all(self.client.clone());
            Ok(Answer::Node(Box::new(api.patch_status(name.as_str(), &params, &Patch::Apply(&body)).await?)))
        })
    }

    /// Sets or removes the health taint, with the annotation that records it. Taints are one list with many writers, so the list is
    /// read first, and written only if the Node has not changed since.
    fn taint<'a>(&'a self, name: &'a NodeName, own: Option<&'a TaintFact>) -> Write<'a> {
        self.write("Node", format!("set the health taint of node {name}"), async move {
            let api = Api::<TrimmedNode>::all(self.client.clone());
            let node = api.get(name.as_str()).await?;
            let record = json!({keys::OWN_TAINT: own.map(ToString::to_string)});
            let body = json!({
                "metadata": {"resourceVersion": node.resource_version(), "annotations": record},
                "spec": {"taints": node.taints_with(own)},
            });
            let params = PatchParams { field_manager: Some(keys::HEALTH_MANAGER.to_owned()), ..PatchParams::default() };
            Ok(Answer::Node(Box::new(api.patch(name.as_str(), &params, &Patch::Merge(&body)).await?)))
        })
    }

    fn write<'a>(
        &'a self,
        target: Target,
        what: String,
        write: impl Future<Output = Result<Answer, kube::Error>> + Send + 'a,
    ) -> Write<'a> {
        Box::pin(async move {
            let result = request(what, write).await.map(|answer| self.mirrors.learn(answer));
            Written { target, result }
        })
    }
}

/// Carries out writes, up to [`AT_ONCE`] concurrently. Their bodies are created as they are needed: those of a whole fleet at
/// once would need more memory than all its facts.
async fn carry_out<T>(writes: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    stream::iter(writes).buffer_unordered(AT_ONCE).collect().await
}

/// Deletes an object. An object that does not exist is not an error.
async fn delete<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    name: &str,
    params: &DeleteParams,
) -> Result<Answer, kube::Error> {
    match api.delete(name, params).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Answer::Nothing),
        other => other.map(|_| Answer::Nothing),
    }
}

fn params() -> PatchParams {
    PatchParams::apply(keys::MANAGER).force()
}

fn status_body(kind: &str, name: &str, status: &serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": {"name": name}, "status": status})
}
