//! Apply: turns the writes of a plan into requests. All of them use server-side apply, so that repeating a write after a crash
//! changes nothing.

use std::{collections::BTreeMap, fmt::Debug, sync::Arc};

use gpu_operator_common::mirror::Version;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::{
    output::{
        body::{Body, Kind, Part, Target},
        write::Write,
    },
    world::{TaintWrite, TrimmedNode},
};
use k8s_openapi::api::{apps::v1::DaemonSet, core::v1::Pod, node::v1::RuntimeClass};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy},
    core::{ClusterResourceScope, NamespaceResourceScope},
};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::{
    error::{Error, request},
    extract::Guarded,
    watch::{Answer, Mirrors},
};

/// Makes writes, and passes the answers of the API server to the mirrors.
pub struct Writer {
    client: Client,
    namespace: String,
    mirrors: Arc<Mirrors>,
}

impl Writer {
    /// Creates a writer. It creates namespaced objects in `namespace`, and updates `mirrors` with every answer.
    pub fn new(client: Client, namespace: String, mirrors: Arc<Mirrors>) -> Self {
        Self { client, namespace, mirrors }
    }

    pub async fn write(&self, write: &Write) -> Result<(), Error> {
        let version = self.mirrors.planned_for(write).map_err(|_| Error::Outdated { what: write.to_string() })?;
        let answer = request(write.to_string(), self.make(write, version)).await?;
        self.mirrors.learn(answer);
        Ok(())
    }

    async fn make(&self, write: &Write, version: Option<Version>) -> Result<Answer, kube::Error> {
        let Target { kind, name, .. } = &write.target;
        match &write.body {
            Body::Delete(uid) => self.delete(*kind, name, uid.clone(), version).await,
            Body::Pod(pod) => self.create(pod).await,
            Body::Eviction(uid) => self.evict(name, uid, false).await,
            Body::EvictionCheck(uid) => self.evict(name, uid, true).await,
            Body::Presence(is_present) => self.presence(write, *is_present).await,
            Body::Taints(taints) => self.taints(write, taints).await,
            Body::Cordon(is_wanted) => self.cordon(write, *is_wanted).await,
            Body::DaemonSet(set) if set.whole => {
                self.apply(write, None).await?;
                // Apply has restored the fields of this operator. Fields that other managers added are only removed by replacing
                // the whole spec.
                let operation = json!([{"op": "replace", "path": "/spec", "value": set.set.spec}]);
                let patch = serde_json::from_value(operation).map_err(kube::Error::SerdeError)?;
                let patch = Patch::Json::<()>(patch);
                let set = self.namespaced().patch(name, &params(write), &patch).await?;
                Ok(Answer::DaemonSet(Box::new(set)))
            }
            _ => self.apply(write, version).await,
        }
    }

    fn all<K: Resource<Scope = ClusterResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::all(self.client.clone())
    }

    fn namespaced<K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn apply(&self, write: &Write, version: Option<Version>) -> Result<Answer, kube::Error> {
        Ok(match write.target.kind {
            Kind::ClusterGpuPolicy => {
                let policy = apply::<Guarded<ClusterGpuPolicy>>(&self.all(), write, version).await?;
                // Removing the last finalizer may delete the policy.
                let may_be_gone = matches!(write.body, Body::Finalizer { present: false, .. });
                if may_be_gone { Answer::Nothing } else { Answer::Policy(policy) }
            }
            Kind::DaemonSet => Answer::DaemonSet(apply(&self.namespaced(), write, version).await?),
            Kind::GpuNode => Answer::GpuNode(apply(&self.all(), write, version).await?),
            Kind::Node => Answer::Node(apply(&self.all(), write, version).await?),
            Kind::Pod => Answer::Pod(apply(&self.namespaced(), write, version).await?),
            Kind::RuntimeClass => Answer::RuntimeClass(apply(&self.all(), write, version).await?),
        })
    }

    async fn create(&self, pod: &Pod) -> Result<Answer, kube::Error> {
        let params = PostParams { field_manager: Some(keys::MANAGER.to_owned()), ..PostParams::default() };
        match self.namespaced::<Pod>().create(&params, pod).await {
            // It was created recently, and the watch has not reported it yet.
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Answer::Nothing),
            made => Ok(Answer::Pod(Box::new(made?))),
        }
    }

    /// Asks the API server to evict a pod. One that does not exist any more, or only its successor of the same name, is not an error. Nor
    /// is a dry run that it cannot do, because one of its webhooks supports none.
    async fn evict(&self, pod: &str, uid: &str, dry_run: bool) -> Result<Answer, kube::Error> {
        let (namespace, name) = pod.split_once('/').unwrap_or((&self.namespace, pod));
        // `Api::evict` of kube 5 names the options `delete_options`, which the API server ignores.
        let eviction = json!({"metadata": {"name": name}, "deleteOptions": {"preconditions": {"uid": uid}}});
        let pods = Api::<Pod>::namespaced(self.client.clone(), namespace);
        let params = PostParams { dry_run, ..PostParams::default() };
        match pods.create_subresource::<Value, Value>("eviction", name, &params, &eviction).await {
            Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(Answer::Nothing),
            Err(kube::Error::Api(status)) if dry_run && status.code == 400 => Ok(Answer::Nothing),
            evicted => evicted.map(|_| Answer::Nothing),
        }
    }

    /// Deletes an object with this uid, or in this version: it may be in use again when the API server carries out the request.
    async fn delete(
        &self,
        kind: Kind,
        name: &str,
        uid: Option<String>,
        version: Option<Version>,
    ) -> Result<Answer, kube::Error> {
        let propagation_policy = (kind == Kind::DaemonSet).then_some(PropagationPolicy::Background);
        let resource_version = version.map(|version| version.to_string());
        let preconditions =
            (uid.is_some() || resource_version.is_some()).then_some(Preconditions { uid, resource_version });
        let params = DeleteParams { propagation_policy, preconditions, ..DeleteParams::default() };
        match kind {
            Kind::ClusterGpuPolicy => delete::<ClusterGpuPolicy>(&self.all(), name, &params).await,
            Kind::DaemonSet => delete::<DaemonSet>(&self.namespaced(), name, &params).await,
            Kind::GpuNode => delete::<GpuNode>(&self.all(), name, &params).await,
            Kind::Node => delete::<TrimmedNode>(&self.all(), name, &params).await,
            Kind::Pod => delete::<Pod>(&self.namespaced(), name, &params).await,
            Kind::RuntimeClass => delete::<RuntimeClass>(&self.all(), name, &params).await,
        }
    }

    /// Cordons a Node with the annotation that records it, or undoes a cordon that has the annotation. Whether it is needed is read
    /// first, and the Node must not have changed since.
    async fn cordon(&self, write: &Write, is_wanted: bool) -> Result<Answer, kube::Error> {
        let node = self.all::<TrimmedNode>().get(&write.target.name).await?;
        let is_own = node.annotations().contains_key(keys::CORDON);
        if if is_wanted { node.is_cordoned() } else { !is_own } {
            return Ok(Answer::Node(Box::new(node)));
        }
        let set = is_wanted.then_some(true);
        let record = json!({keys::CORDON: set.map(|set| set.to_string())});
        self.change(write, &node, &record, &json!({"unschedulable": set})).await
    }

    /// Sets the label that a Node has GPUs, or none any more, regardless of who has set it.
    async fn presence(&self, write: &Write, is_present: bool) -> Result<Answer, kube::Error> {
        let body = json!({"metadata": {"labels": {keys::PRESENT: is_present.to_string()}}});
        let node = self.all::<TrimmedNode>().patch(&write.target.name, &params(write), &Patch::Merge(body)).await?;
        Ok(Answer::Node(Box::new(node)))
    }

    /// Changes the taints, and the annotation that records this operator's own one. Taints are one list with many writers, so the list
    /// is read first, and written only if the Node has not changed since.
    async fn taints(&self, write: &Write, taints: &TaintWrite) -> Result<Answer, kube::Error> {
        let node = self.all::<TrimmedNode>().get(&write.target.name).await?;
        let own = taints.own.as_ref().map(|own| own.wanted.as_ref());
        let record = own.map(|wanted| (keys::OWN_TAINT, wanted.map(ToString::to_string)));
        let record = json!(record.into_iter().collect::<BTreeMap<_, _>>());
        self.change(write, &node, &record, &json!({"taints": node.taints_after(taints)})).await
    }

    /// Changes the spec of a Node together with the annotations that record the change, if the Node is still as it was read.
    async fn change(
        &self,
        write: &Write,
        read: &TrimmedNode,
        record: &Value,
        spec: &Value,
    ) -> Result<Answer, kube::Error> {
        let metadata = json!({"resourceVersion": read.resource_version(), "annotations": record});
        let body = Patch::Merge(json!({"metadata": metadata, "spec": spec}));
        let node = self.all::<TrimmedNode>().patch(&write.target.name, &params(write), &body).await?;
        Ok(Answer::Node(Box::new(node)))
    }
}

/// Makes a server-side apply, on the condition that the object still has this version, if there is one.
async fn apply<K: Clone + DeserializeOwned + Debug>(
    api: &Api<K>,
    write: &Write,
    version: Option<Version>,
) -> Result<Box<K>, kube::Error> {
    let params = PatchParams { force: write.is_forced(), ..params(write) };
    let mut fields = write.fields();
    if let Some(version) = version {
        fields["metadata"]["resourceVersion"] = version.to_string().into();
    }
    let (name, patch) = (&write.target.name, Patch::Apply(fields));
    let is_of_status = matches!(write.target.part, Part::Status | Part::Ledger | Part::Conditions);
    let applied = if is_of_status {
        api.patch_status(name, &params, &patch).await
    } else {
        api.patch(name, &params, &patch).await
    };
    applied.map(Box::new)
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

fn params(write: &Write) -> PatchParams {
    PatchParams::apply(write.manager())
}
