//! Apply: turns the writes of a plan into requests. All of them use server-side apply, so that repeating a write after a crash
//! changes nothing.

use std::{fmt::Debug, sync::Arc};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GROUP, GpuNode, GpuNodeStatus, NodeName, PolicyName, VERSION, keys,
};
use gpu_operator_plan::{
    output::{
        daemon_sets::DaemonSetWrite, gpu_node::SpecWrite, node_labels::LabelWrite, plan::FinalizerWrite, writes::Write,
    },
    world::{HealthCondition, TaintFact, TrimmedNode},
};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Node, Pod},
        node::v1::RuntimeClass,
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{ClusterResourceScope, NamespaceResourceScope, PartialObjectMetaExt},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{
    error::{Error, request},
    watch::{Answer, Mirrors},
};

/// Makes writes, and passes the answers of the API server to the mirrors.
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

    /// Makes a write, and updates the mirrors from the answer.
    ///
    /// # Errors
    /// Returns why the write failed.
    pub async fn write(&self, write: &Write) -> Result<(), Error> {
        let answer = request(write.to_string(), self.make(write)).await?;
        self.mirrors.learn(answer);
        Ok(())
    }

    async fn make(&self, write: &Write) -> Result<Answer, kube::Error> {
        match write {
            Write::Finalizer(name, write) => self.finalizer(name, write).await,
            Write::DaemonSet(name, write) => self.daemon_set(name, write).await,
            Write::Prune(name) => {
                let params = DeleteParams::default();
                let params = DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..params };
                delete(&self.namespaced::<DaemonSet>(), name, &params).await
            }
            Write::RuntimeClass(name, class) => self.runtime_class(name, class).await,
            Write::PruneClass(name) => delete(&self.all::<RuntimeClass>(), name, &DeleteParams::default()).await,
            Write::PruneGpuNode(name, uid) => {
                let preconditions = Some(Preconditions { uid: Some(uid.clone()), resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                delete(&self.all::<GpuNode>(), name.as_str(), &params).await
            }
            Write::DeletePod(name) => delete(&self.namespaced::<Pod>(), name, &DeleteParams::default()).await,
            Write::Pod(_, pod) => self.pod(pod).await,
            Write::Spec(name, write) => self.gpu_node_spec(name, write).await,
            Write::Status(name, status) => self.gpu_node_status(name, status).await,
            Write::PolicyStatus(name, status) => self.policy_status(name, status).await,
            Write::Labels(name, write) => self.labels(name, write).await,
            Write::Condition(name, condition) => self.condition(name, condition.as_ref()).await,
            Write::Taint(name, own) => self.taint(name, own.as_ref()).await,
        }
    }

    fn all<K: Resource<Scope = ClusterResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn namespaced<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn finalizer(&self, name: &PolicyName, write: &FinalizerWrite) -> Result<Answer, kube::Error> {
        // A separate field manager, because the next apply by the main one would otherwise remove the finalizer.
        let manager = format!("{}/finalizer", keys::MANAGER);
        let finalizers = if write.present { vec![keys::FINALIZER] } else { vec![] };
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterGpuPolicy",
            "metadata": {"name": name, "uid": write.uid, "finalizers": finalizers},
        });
        let params = PatchParams::apply(&manager).force();
        let policy = self.all::<ClusterGpuPolicy>().patch(name.as_str(), &params, &Patch::Apply(&body)).await?;
        // Removing the last finalizer may delete the policy.
        Ok(if write.present { Answer::Policy(Box::new(policy)) } else { Answer::Nothing })
    }

    async fn daemon_set(&self, name: &str, write: &DaemonSetWrite) -> Result<Answer, kube::Error> {
        let api = self.namespaced::<DaemonSet>();
        let mut set = api.patch(name, &params(), &Patch::Apply(&write.set)).await?;
        if write.whole {
            // Apply has restored the fields of this operator. Fields that other managers added are only removed by replacing the
            // whole spec.
            let operation = json!([{"op": "replace", "path": "/spec", "value": write.set.spec}]);
            let patch = serde_json::from_value(operation).map_err(kube::Error::SerdeError)?;
            let params = PatchParams { field_manager: Some(keys::MANAGER.to_owned()), ..PatchParams::default() };
            set = api.patch(name, &params, &Patch::Json::<()>(patch)).await?;
        }
        Ok(Answer::DaemonSet(Box::new(set)))
    }

    async fn runtime_class(&self, name: &str, class: &RuntimeClass) -> Result<Answer, kube::Error> {
        // Without force: a RuntimeClass that another user created meanwhile with a different handler is kept.
        let params = PatchParams::apply(keys::MANAGER);
        let class = self.all::<RuntimeClass>().patch(name, &params, &Patch::Apply(class)).await?;
        Ok(Answer::RuntimeClass(Box::new(class)))
    }

    async fn pod(&self, pod: &Pod) -> Result<Answer, kube::Error> {
        let params = PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() };
        match self.namespaced::<Pod>().create(&params, pod).await {
            // It was created recently, and the watch has not reported it yet.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Answer::Nothing),
            made => Ok(Answer::Pod(Box::new(made?))),
        }
    }

    async fn gpu_node_spec(&self, name: &NodeName, write: &SpecWrite) -> Result<Answer, kube::Error> {
        let mut gpu_node = GpuNode::new(name.as_str(), write.spec.clone());
        gpu_node.metadata.owner_references = Some(vec![write.owner.clone()]);
        gpu_node.metadata.uid.clone_from(&write.uid);
        let gpu_node = self.all::<GpuNode>().patch(name.as_str(), &params(), &Patch::Apply(&gpu_node)).await?;
        Ok(Answer::GpuNode(Box::new(gpu_node)))
    }

    async fn gpu_node_status(&self, name: &NodeName, status: &GpuNodeStatus) -> Result<Answer, kube::Error> {
        let body = status_body("GpuNode", name.as_str(), &json!(status));
        let gpu_node = self.all::<GpuNode>().patch_status(name.as_str(), &params(), &Patch::Apply(&body)).await?;
        Ok(Answer::GpuNode(Box::new(gpu_node)))
    }

    async fn policy_status(&self, name: &PolicyName, status: &ClusterGpuPolicyStatus) -> Result<Answer, kube::Error> {
        let body = status_body("ClusterGpuPolicy", name.as_str(), &json!(status));
        let api = self.all::<ClusterGpuPolicy>();
        Ok(Answer::Policy(Box::new(api.patch_status(name.as_str(), &params(), &Patch::Apply(&body)).await?)))
    }

    async fn labels(&self, name: &NodeName, planned: &LabelWrite) -> Result<Answer, kube::Error> {
        let labels = (!planned.labels.is_empty()).then(|| planned.labels.clone());
        // Without the uid, apply would try to recreate a deleted Node, and the API server would report a missing permission instead
        // of a conflict.
        let uid = Some(planned.uid.clone());
        let meta = ObjectMeta { labels, uid, ..ObjectMeta::default() }.into_request_partial::<Node>();
        let params = PatchParams { force: planned.force, ..PatchParams::apply(keys::LABEL_MANAGER) };
        let node = self.all::<TrimmedNode>().patch(name.as_str(), &params, &Patch::Apply(&meta)).await?;
        Ok(Answer::Node(Box::new(node)))
    }

    async fn condition(&self, name: &NodeName, condition: Option<&HealthCondition>) -> Result<Answer, kube::Error> {
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
        let params = PatchParams::apply(keys::HEALTH_MANAGER).force();
        let node = self.all::<TrimmedNode>().patch_status(name.as_str(), &params, &Patch::Apply(&body)).await?;
        Ok(Answer::Node(Box::new(node)))
    }

    /// Sets or removes the health taint, with the annotation that records it. Taints are one list with many writers, so the list is
    /// read first, and written only if the Node has not changed since.
    async fn taint(&self, name: &NodeName, own: Option<&TaintFact>) -> Result<Answer, kube::Error> {
        let api = self.all::<TrimmedNode>();
        let node = api.get(name.as_str()).await?;
        let record = json!({keys::OWN_TAINT: own.map(ToString::to_string)});
        let body = json!({
            "metadata": {"resourceVersion": node.resource_version(), "annotations": record},
            "spec": {"taints": node.taints_with(own)},
        });
        let params = PatchParams { field_manager: Some(keys::HEALTH_MANAGER.to_owned()), ..PatchParams::default() };
        Ok(Answer::Node(Box::new(api.patch(name.as_str(), &params, &Patch::Merge(&body)).await?)))
    }
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
