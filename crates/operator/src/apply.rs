//! Apply: carries out a plan. Server-side apply throughout, so that a write which is repeated after a crash changes
//! nothing. Each object's failure is its own: the others are written all the same.

use std::{collections::BTreeSet, fmt::Debug, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream};
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, GROUP, GpuNode, GpuNodeSpec, GpuNodeStatus, VERSION, keys,
};
use gpu_operator_plan::{
    Plan,
    output::{daemon_sets::DaemonSetWrite, node_health::NodeHealthWrite, node_labels::LabelWrite},
    world::{HealthCondition, NodeFacts, TrimmedNode},
};
use k8s_openapi::{
    api::{
        apps::v1::DaemonSet,
        core::v1::{Node, Pod, Taint},
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

/// Writes that are under way at once.
const AT_ONCE: usize = 16;

/// What kind of object a write went to: a metric's label.
pub type Target = &'static str;

/// One write's end.
#[derive(Debug)]
pub struct Written {
    /// What it went to.
    pub target: Target,
    /// What came of it.
    pub result: Result<(), Error>,
}

type Write<'a> = BoxFuture<'a, Written>;

/// The way out: where to write, and who learns of what came of it.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    namespace: String,
    mirrors: Arc<Mirrors>,
}

impl Writer {
    /// Writes through `client`; children go to `namespace`; `mirrors` learn of every answer.
    #[must_use]
    pub fn new(client: Client, namespace: String, mirrors: Arc<Mirrors>) -> Self {
        Self { client, namespace, mirrors }
    }

    /// Carries out a plan and says how each write ended.
    ///
    /// The order holds back what depends on other writes: finalizers go on before anything else is written, and come
    /// off last; labels are written after the DaemonSets that they name, and after the GpuNode's spec that records why, if
    /// that could be written; status tells of what has been written.
    pub async fn apply(&self, plan: &Plan) -> Vec<Written> {
        let finalizers = |on: bool| plan.finalizers.iter().filter(move |(_, put)| **put == on);
        let sets = plan.daemon_sets.iter().map(|(name, write)| self.daemon_set(name, write));
        let classes = plan.runtime_classes.iter().map(|(name, class)| self.runtime_class(name, class));
        let statuses = plan.gpu_nodes.iter().filter_map(|(name, write)| Some((name, write.status.as_ref()?)));
        let mut written = carry_out(finalizers(true).map(|(name, _)| self.finalizer(name, true))).await;
        written.extend(carry_out(sets.chain(classes)).await);
        let (unrecorded, specs) = self.gpu_node_specs(plan).await;
        written.extend(specs);
        // A move that is not on record would be nobody's turn.
        let labels = plan.labels.iter().filter(|(name, _)| !unrecorded.contains(name.as_str()));
        let health = plan.node_health.iter().flat_map(|(name, write)| self.node_health(name, write));
        written.extend(carry_out(labels.map(|(name, write)| self.labels(name, write)).chain(health)).await);
        written.extend(
            carry_out(
                statuses
                    .map(|(name, status)| self.gpu_node_status(name, status))
                    .chain(plan.prune.iter().map(|name| self.prune(name)))
                    .chain(plan.prune_classes.iter().map(|name| self.prune_class(name)))
                    .chain(plan.renew.iter().map(|name| self.renew(name)))
                    .chain(plan.pods.iter().map(|(name, pod)| self.pod(name, pod))),
            )
            .await,
        );
        // A policy tells of its nodes, and not before they do.
        written.extend(carry_out(plan.policies.iter().map(|(name, status)| self.policy_status(name, status))).await);
        written.extend(carry_out(finalizers(false).map(|(name, _)| self.finalizer(name, false))).await);
        written
    }

    /// Writes the GpuNodes' specs; also of which nodes that failed.
    async fn gpu_node_specs<'p>(&self, plan: &'p Plan) -> (BTreeSet<&'p str>, Vec<Written>) {
        let specs = plan.gpu_nodes.iter().filter_map(|(name, write)| Some((name.as_str(), write.spec.as_ref()?)));
        let begins = |spec: &(GpuNodeSpec, OwnerReference)| spec.0.rollout.is_some();
        // Whose move is over gives up its turn before another takes it, so that nobody sees two that have it.
        let (later, first): (Vec<_>, Vec<_>) = specs.partition(|(_, spec)| begins(spec));
        let named = |(name, spec)| async move { (name, self.gpu_node_spec(name, spec).await) };
        let mut ended = carry_out(first.into_iter().map(named)).await;
        let mut unrecorded = BTreeSet::new();
        if ended.iter().all(|(_, written)| written.result.is_ok()) {
            ended.extend(carry_out(later.into_iter().map(named)).await);
        } else {
            // One of those may still have the turn on record. The next pass tries again.
            unrecorded.extend(later.into_iter().map(|(name, _)| name));
        }
        unrecorded.extend(ended.iter().filter(|(_, written)| written.result.is_err()).map(|(name, _)| *name));
        (unrecorded, ended.into_iter().map(|(_, written)| written).collect())
    }

    fn finalizer<'a>(&'a self, name: &'a str, on: bool) -> Write<'a> {
        // A field manager of its own: what is applied next to status or spec would otherwise take it off again.
        let manager = format!("{}/finalizer", keys::MANAGER);
        let finalizers = if on { vec![keys::FINALIZER] } else { vec![] };
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterGpuPolicy",
            "metadata": {"name": name, "finalizers": finalizers},
        });
        self.write("ClusterGpuPolicy", format!("set the finalizer of policy {name}"), async move {
            let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
            let policy = api.patch(name, &PatchParams::apply(&manager).force(), &Patch::Apply(&body)).await?;
            // With its last finalizer the policy itself is gone.
            Ok(if on { Answer::Policy(Box::new(policy)) } else { Answer::Nothing })
        })
    }

    fn daemon_set<'a>(&'a self, name: &'a str, write: &'a DaemonSetWrite) -> Write<'a> {
        self.write("DaemonSet", format!("apply DaemonSet {name}"), async move {
            let api = Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace);
            let mut set = api.patch(name, &params(), &Patch::Apply(&write.set)).await?;
            if write.whole {
                // What is ours is ours again; what others have added goes only with the whole it was added to.
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
            // Without force: one that somebody else has made meanwhile with another handler stays his.
            let class = api.patch(name, &PatchParams::apply(keys::MANAGER), &Patch::Apply(class)).await?;
            Ok(Answer::RuntimeClass(Box::new(class)))
        })
    }

    fn prune_class<'a>(&'a self, name: &'a str) -> Write<'a> {
        self.write("RuntimeClass", format!("delete RuntimeClass {name}"), async move {
            delete(&Api::<RuntimeClass>::all(self.client.clone()), name, &DeleteParams::default()).await
        })
    }

    fn renew<'a>(&'a self, name: &'a str) -> Write<'a> {
        self.write("Pod", format!("delete pod {name}"), async move {
            delete(&Api::<Pod>::namespaced(self.client.clone(), &self.namespace), name, &DeleteParams::default()).await
        })
    }

    fn pod<'a>(&'a self, name: &'a str, pod: &'a Pod) -> Write<'a> {
        self.write("Pod", format!("make pod {name}"), async move {
            let params = PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() };
            match Api::<Pod>::namespaced(self.client.clone(), &self.namespace).create(&params, pod).await {
                // It was made a moment ago, and no watch has told of it yet.
                Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Answer::Nothing),
                made => Ok(Answer::Pod(Box::new(made?))),
            }
        })
    }

    fn gpu_node_spec<'a>(&'a self, name: &'a str, (spec, owner): &'a (GpuNodeSpec, OwnerReference)) -> Write<'a> {
        let mut gpu_node = GpuNode::new(name, spec.clone());
        gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
        self.write("GpuNode", format!("apply the spec of GpuNode {name}"), async move {
            let api = Api::<GpuNode>::all(self.client.clone());
            Ok(Answer::GpuNode(Box::new(api.patch(name, &params(), &Patch::Apply(&gpu_node)).await?)))
        })
    }

    fn gpu_node_status<'a>(&'a self, name: &'a str, status: &'a GpuNodeStatus) -> Write<'a> {
        let body = status_body("GpuNode", name, &json!(status));
        self.write("GpuNode", format!("apply the status of GpuNode {name}"), async move {
            let api = Api::<GpuNode>::all(self.client.clone());
            Ok(Answer::GpuNode(Box::new(api.patch_status(name, &params(), &Patch::Apply(&body)).await?)))
        })
    }

    fn policy_status<'a>(&'a self, name: &'a str, status: &'a ClusterGpuPolicyStatus) -> Write<'a> {
        let body = status_body("ClusterGpuPolicy", name, &json!(status));
        self.write("ClusterGpuPolicy", format!("apply the status of policy {name}"), async move {
            let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
            Ok(Answer::Policy(Box::new(api.patch_status(name, &params(), &Patch::Apply(&body)).await?)))
        })
    }

    fn labels<'a>(&'a self, name: &'a str, planned: &'a LabelWrite) -> Write<'a> {
        self.write("Node", format!("label node {name}"), async move {
            let labels = (!planned.labels.is_empty()).then(|| planned.labels.clone());
            // Without the uid a Node that is gone would be made anew, which is refused for want of a right and not as a conflict.
            let uid = Some(planned.uid.clone());
            let meta = ObjectMeta { labels, uid, ..ObjectMeta::default() }.into_request_partial::<Node>();
            let params = PatchParams { force: planned.force, ..PatchParams::apply(keys::LABEL_MANAGER) };
            let node = Api::<TrimmedNode>::all(self.client.clone()).patch(name, &params, &Patch::Apply(&meta)).await?;
            Ok(Answer::Node(Box::new(node)))
        })
    }

    fn node_health<'a>(&'a self, name: &'a str, write: &'a NodeHealthWrite) -> impl Iterator<Item = Write<'a>> {
        let condition = write.condition.as_ref().map(|condition| self.condition(name, condition.as_ref()));
        condition.into_iter().chain(write.taint.map(|on| self.taint(name, on)))
    }

    fn condition<'a>(&'a self, name: &'a str, condition: Option<&'a HealthCondition>) -> Write<'a> {
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
            Ok(Answer::Node(Box::new(api.patch_status(name, &params, &Patch::Apply(&body)).await?)))
        })
    }

    /// Taints are one list with many writers, so that it is read, and written only as it was read.
    fn taint<'a>(&'a self, name: &'a str, on: bool) -> Write<'a> {
        self.write("Node", format!("set the health taint of node {name}"), async move {
            let api = Api::<TrimmedNode>::all(self.client.clone());
            let node = api.get(name).await?;
            let others = NodeFacts::taints_of(&node).iter().filter(|taint| taint.key != keys::UNHEALTHY_TAINT);
            let own =
                Taint { key: keys::UNHEALTHY_TAINT.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
            let taints: Vec<Taint> = others.cloned().chain(on.then_some(own)).collect();
            let version = node.resource_version();
            let body = json!({"metadata": {"resourceVersion": version}, "spec": {"taints": taints}});
            let params = PatchParams { field_manager: Some(keys::HEALTH_MANAGER.to_owned()), ..PatchParams::default() };
            Ok(Answer::Node(Box::new(api.patch(name, &params, &Patch::Merge(&body)).await?)))
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

/// Carries writes out, some at once. They are made one after another as that goes on: a whole fleet's at once would be more
/// than all that is known of it.
async fn carry_out<T>(writes: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    stream::iter(writes).buffer_unordered(AT_ONCE).collect().await
}

/// Deletes an object; one that is gone already is as good.
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
