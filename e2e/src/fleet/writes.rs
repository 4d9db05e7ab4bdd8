//! What kubelet and probe write into the API, each as the real one does.

use anyhow::Result;
use gpu_operator_crd::Report;
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::PartialObjectMeta,
};
use nvml_probe::report::{gpu_node::GpuNodeView, publish::Publisher};
use serde_json::json;

use super::{machine::Gpus, node::published, pod::PlacedPod};

/// One write.
#[derive(Clone, Debug)]
pub(super) enum Write {
    /// Kubelet tells of a pod.
    Status(PlacedPod, Box<PodStatus>),
    /// Kubelet has ended a pod that was to be deleted.
    End(PlacedPod),
    /// Kubelet publishes so many GPUs of a node.
    Gpus(String, Gpus),
    /// The probe of a node reports, knowing this of its GpuNode.
    Report(String, GpuNodeView, Box<Report>),
}

/// What came of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// The resource version of a Node that was written; else 0.
    pub version: u64,
}

/// Carries a write out. An object that is gone by now has nothing to be told.
pub(super) async fn carry_out(client: &Client, write: &Write) -> Result<Written> {
    let outcome = match write {
        Write::Status(pod, status) => {
            // The uid makes the server refuse a patch of another pod of that name.
            let patch = json!({"metadata": {"uid": pod.uid}, "status": status});
            pods(client, pod)
                .patch_status(&pod.name, &PatchParams::default(), &Patch::Strategic(patch))
                .await
                .map(|_| Written::default())
        }
        Write::End(pod) => {
            let uid = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
            let now =
                DeleteParams { grace_period_seconds: Some(0), preconditions: Some(uid), ..DeleteParams::default() };
            pods(client, pod).delete(&pod.name, &now).await.map(|_| Written::default())
        }
        Write::Gpus(node, gpus) => {
            let nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
            let patch = Patch::Strategic(published(*gpus));
            let node = nodes.patch_status(node, &PatchParams::default(), &patch).await;
            node.map(|node| Written { version: version(&node) })
        }
        Write::Report(node, seen, report) => {
            Publisher::new(client.clone(), node).publish(seen, report).await?;
            return Ok(Written::default());
        }
    };
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() || status.is_conflict() => Ok(Written::default()),
        outcome => Ok(outcome?),
    }
}

/// An object's resource version as a number: the larger one is the later one.
pub(super) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn pods(client: &Client, pod: &PlacedPod) -> Api<PartialObjectMeta<Pod>> {
    Api::namespaced(client.clone(), &pod.namespace)
}
