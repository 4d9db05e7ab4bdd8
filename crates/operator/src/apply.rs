//! Apply: carries out a plan. All writes use server-side apply, so that repeating a write after a crash changes nothing. If
//! a write fails, the other objects are still written.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::{
    StreamExt,
    future::{self, BoxFuture},
    stream,
};
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GROUP, GpuNode, GpuNodeStatus, NodeName, PolicyName, VERSION, keys,
};
use gpu_operator_plan::{
    Plan,
    carry::Carry,
    output::{
        daemon_sets::DaemonSetWrite,
        gpu_node::SpecWrite,
        node_labels::LabelWrite,
        plan::FinalizerWrite,
        writes::{Unwritten, Write},
    },
    time::Uptime,
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
use tokio::time::{Instant, timeout, timeout_at};

use crate::{
    error::{Error, request},
    watch::{Answer, Mirrors},
};

/// The maximum number of concurrent writes, without those that have not been answered within [`SLOW`].
const AT_ONCE: usize = 16;
/// The time after which the answer to a write is no longer waited for before the next write is made.
const SLOW: Duration = Duration::from_secs(1);
/// How long a plan is carried out. What it decided may no longer be right after that: a node that was idle may have GPU pods.
const LIFETIME: Duration = Duration::from_secs(10);

type Request<'p> = BoxFuture<'p, Result<(), Error>>;

/// The result of one write.
#[derive(Debug)]
pub struct Written {
    /// The kind of the object, a label value of a metric.
    pub kind: &'static str,
    /// Whether the write succeeded.
    pub result: Result<(), Error>,
}

/// Carries out plans, and passes the answers of the API server to the mirrors.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    namespace: String,
    mirrors: Arc<Mirrors>,
    started: Instant,
}

impl Writer {
    /// Creates a writer that writes through `client`, creates namespaced objects in `namespace`, and updates `mirrors` with every
    /// answer.
    #[must_use]
    pub fn new(client: Client, namespace: String, mirrors: Arc<Mirrors>) -> Self {
        Self { client, namespace, mirrors, started: Instant::now() }
    }

    /// Returns the time since its creation, by which it records what it carries over.
    #[must_use]
    pub fn uptime(&self) -> Uptime {
        self.started.elapsed()
    }

    /// Carries out a plan for at most [`LIFETIME`], stage by stage, and returns the result of each write.
    ///
    /// A write that fails, that is not answered or that `carry` holds delays only the writes that depend on it.
    pub async fn apply(&self, plan: &Plan, carry: &mut Carry) -> Vec<Written> {
        let (stages, until) = (plan.stages(), Instant::now() + LIFETIME);
        let (mut written, mut unwritten, mut slow) = (Vec::new(), Unwritten::default(), Vec::new());
        for stage in &stages {
            let held = |write: &Write<'_>| unwritten.prevents(write) || carry.holds(write, self.uptime());
            let (held, ready): (Vec<_>, Vec<_>) = stage.iter().copied().partition(held);
            for write in &held {
                unwritten.add(write);
            }
            // Requests are made as they are needed: their bodies for a fleet would need more memory than all its facts.
            let ready = stream::iter(ready).take_while(|_| future::ready(Instant::now() < until));
            let mut answers = ready.map(|write| self.begin(write)).buffer_unordered(AT_ONCE);
            while let Some((write, answer)) = answers.next().await {
                match answer {
                    Ok(result) => written.push(self.settle(write, result, &mut unwritten, carry)),
                    Err(request) => {
                        unwritten.add(&write);
                        slow.push(async move { (write, timeout_at(until, request).await) });
                    }
                }
            }
        }
        for (write, answer) in future::join_all(slow).await {
            let result = answer.unwrap_or_else(|_| Err(Error::NoAnswer { what: write.to_string() }));
            written.push(self.settle(write, result, &mut unwritten, carry));
        }
        written
    }

    /// Records the result of a write for the writes that depend on it, and for later passes.
    fn settle<'p>(
        &self,
        write: Write<'p>,
        result: Result<(), Error>,
        unwritten: &mut Unwritten<'p>,
        carry: &mut Carry,
    ) -> Written {
        if result.is_err() {
            unwritten.add(&write);
        }
        carry.settled(&write, result.as_ref().copied().map_err(Error::failure), self.uptime());
        Written { kind: write.kind(), result }
    }

    /// Makes a write. Returns its result, or the request if it has not been answered within [`SLOW`].
    async fn begin<'p>(&'p self, write: Write<'p>) -> (Write<'p>, Result<Result<(), Error>, Request<'p>>) {
        let mut request = self.request(write);
        let answer = timeout(SLOW, &mut request).await;
        (write, answer.map_err(|_| request))
    }

    fn request<'p>(&'p self, write: Write<'p>) -> Request<'p> {
        Box::pin(async move {
            let answer = request(write.to_string(), self.make(write)).await?;
            self.mirrors.learn(answer);
            Ok(())
        })
    }

    async fn make(&self, write: Write<'_>) -> Result<Answer, kube::Error> {
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
                let preconditions = Some(Preconditions { uid: Some(uid.to_owned()), resource_version: None });
                let params = DeleteParams { preconditions, ..DeleteParams::default() };
                delete(&self.all::<GpuNode>(), name.as_str(), &params).await
            }
            Write::Recreate(name) => delete(&self.namespaced::<Pod>(), name, &DeleteParams::default()).await,
            Write::Pod(_, pod) => self.pod(pod).await,
            Write::Spec(name, write) => self.gpu_node_spec(name, write).await,
            Write::Status(name, status) => self.gpu_node_status(name, status).await,
            Write::PolicyStatus(name, status) => self.policy_status(name, status).await,
            Write::Labels(name, write) => self.labels(name, write).await,
            Write::Condition(name, condition) => self.condition(name, condition).await,
            Write::Taint(name, own) => self.taint(name, own).await,
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
