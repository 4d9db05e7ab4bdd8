//! Apply: carries out a plan. Server-side apply throughout, so that a write which is repeated after a crash changes
//! nothing. Each object's failure is its own: the others are written all the same.

use futures::{StreamExt, future::BoxFuture, stream};
use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicyStatus, GROUP, GpuNode, VERSION, keys};
use k8s_openapi::{
    api::{apps::v1::DaemonSet, core::v1::Node},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PropagationPolicy},
    core::PartialObjectMetaExt,
};
use serde_json::json;

use crate::{
    error::Error,
    plan::{GpuNodeWrite, LabelWrite, Plan},
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

/// The rim of [`apply`]: where to write.
#[derive(Clone)]
pub struct Writer {
    client: Client,
    namespace: String,
}

impl Writer {
    /// Writes through `client`; children go to `namespace`.
    #[must_use]
    pub fn new(client: Client, namespace: String) -> Self {
        Self { client, namespace }
    }

    /// Carries out a plan and says how each write ended.
    ///
    /// The order holds back what depends on other writes: finalizers go on before anything else is written, and come
    /// off last; labels are named after the DaemonSets they name exist; status tells of what has been written.
    pub async fn apply(&self, plan: &Plan) -> Vec<Written> {
        let finalizers = |on: bool| plan.finalizers.iter().filter(move |(_, put)| **put == on);
        let steps: [Vec<Write<'_>>; 6] = [
            finalizers(true).map(|(name, _)| self.finalizer(name, true)).collect(),
            plan.daemon_sets.iter().map(|(name, set)| self.daemon_set(name, set)).collect(),
            plan.gpu_nodes
                .iter()
                .filter(|(_, write)| write.spec.is_some())
                .map(|(name, write)| self.gpu_node_spec(name, write))
                .collect(),
            plan.labels.iter().map(|(name, write)| self.labels(name, write)).collect(),
            plan.gpu_nodes
                .iter()
                .filter(|(_, write)| write.status.is_some())
                .map(|(name, write)| self.gpu_node_status(name, write))
                .chain(plan.policies.iter().map(|(name, status)| self.policy_status(name, status)))
                .chain(plan.prune.iter().map(|name| self.prune(name)))
                .collect(),
            finalizers(false).map(|(name, _)| self.finalizer(name, false)).collect(),
        ];
        let mut written = Vec::new();
        for step in steps {
            let ended: Vec<_> = stream::iter(step).buffer_unordered(AT_ONCE).collect().await;
            written.extend(ended);
        }
        written
    }

    fn finalizer<'a>(&'a self, name: &'a str, on: bool) -> Write<'a> {
        // A field manager of its own: what is applied next to status or spec would otherwise take it off again.
        let manager = format!("{}/finalizer", keys::MANAGER);
        let finalizers = if on { vec![keys::FINALIZER] } else { vec![] };
        let body = json!({
            "apiVersion": format!("{GROUP}/{VERSION}"), "kind": "ClusterGpuPolicy",
            "metadata": {"name": name, "finalizers": finalizers},
        });
        write("ClusterGpuPolicy", format!("set the finalizer of policy {name}"), async move {
            let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
            api.patch_metadata(name, &PatchParams::apply(&manager).force(), &Patch::Apply(&body)).await.map(drop)
        })
    }

    fn daemon_set<'a>(&'a self, name: &'a str, set: &'a DaemonSet) -> Write<'a> {
        write("DaemonSet", format!("apply DaemonSet {name}"), async move {
            let api = Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace);
            api.patch(name, &params(), &Patch::Apply(set)).await.map(drop)
        })
    }

    fn prune<'a>(&'a self, name: &'a str) -> Write<'a> {
        write("DaemonSet", format!("delete DaemonSet {name}"), async move {
            let api = Api::<DaemonSet>::namespaced(self.client.clone(), &self.namespace);
            let params =
                DeleteParams { propagation_policy: Some(PropagationPolicy::Background), ..DeleteParams::default() };
            match api.delete(name, &params).await {
                Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
                other => other.map(drop),
            }
        })
    }

    fn gpu_node_spec<'a>(&'a self, name: &'a str, planned: &'a GpuNodeWrite) -> Write<'a> {
        write("GpuNode", format!("apply the spec of GpuNode {name}"), async move {
            let Some((spec, owner)) = &planned.spec else {
                return Ok(());
            };
            let mut gpu_node = GpuNode::new(name, spec.clone());
            gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
            let api = Api::<GpuNode>::all(self.client.clone());
            api.patch(name, &params(), &Patch::Apply(&gpu_node)).await.map(drop)
        })
    }

    fn gpu_node_status<'a>(&'a self, name: &'a str, planned: &'a GpuNodeWrite) -> Write<'a> {
        write("GpuNode", format!("apply the status of GpuNode {name}"), async move {
            let Some(status) = &planned.status else { return Ok(()) };
            let body = status_body("GpuNode", name, &json!(status));
            Api::<GpuNode>::all(self.client.clone()).patch_status(name, &params(), &Patch::Apply(&body)).await.map(drop)
        })
    }

    fn policy_status<'a>(&'a self, name: &'a str, status: &'a ClusterGpuPolicyStatus) -> Write<'a> {
        write("ClusterGpuPolicy", format!("apply the status of policy {name}"), async move {
            let body = status_body("ClusterGpuPolicy", name, &json!(status));
            let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
            api.patch_status(name, &params(), &Patch::Apply(&body)).await.map(drop)
        })
    }

    fn labels<'a>(&'a self, name: &'a str, planned: &'a LabelWrite) -> Write<'a> {
        write("Node", format!("label node {name}"), async move {
            let labels = (!planned.labels.is_empty()).then(|| planned.labels.clone());
            let meta = ObjectMeta { labels, ..ObjectMeta::default() }.into_request_partial::<Node>();
            let params = PatchParams { force: planned.force, ..PatchParams::apply(keys::LABEL_MANAGER) };
            Api::<Node>::all(self.client.clone()).patch_metadata(name, &params, &Patch::Apply(&meta)).await.map(drop)
        })
    }
}

fn params() -> PatchParams {
    PatchParams::apply(keys::MANAGER).force()
}

fn status_body(kind: &str, name: &str, status: &serde_json::Value) -> serde_json::Value {
    json!({"apiVersion": format!("{GROUP}/{VERSION}"), "kind": kind, "metadata": {"name": name}, "status": status})
}

fn write<'a>(
    target: Target,
    what: String,
    request: impl Future<Output = Result<(), kube::Error>> + Send + 'a,
) -> Write<'a> {
    Box::pin(async move {
        let result = request.await.map_err(|source| Error { what, source });
        Written { target, result }
    })
}
