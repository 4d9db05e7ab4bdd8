//! The writes of kubelet, detector and probe, as the real ones make them.

use std::{collections::BTreeMap, time::Instant};

use anyhow::Result;
use gpu_operator_crd::Report;
use gpu_operator_plan::world::Resources;
use k8s_openapi::{
    api::core::v1::{Node, Pod},
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::Timestamp,
};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, Preconditions},
    core::PartialObjectMeta,
};
use nvml_probe::report::gpu_node::{Announcer, GpuNodeView, Publisher};
use serde_json::{Value, json};

use super::pod::PodId;

#[derive(Clone, Debug)]
pub(super) enum Write {
    /// Kubelet reports a pod's status.
    Status(PodId, Box<Value>),
    /// Kubelet deletes a pod that has ended.
    End(PodId),
    /// Kubelet publishes the boot ID of a node.
    Boot(String, String),
    /// Kubelet publishes the resources of a node's device plugins.
    Gpus(String, Resources),
    /// The detector of a node announces its first GPU.
    Detect(String),
    /// The probe of a node reports; with its last view of the GpuNode.
    Report(String, GpuNodeView, Box<Report>),
}

/// The result of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// The resource version of the written Node; 0 for other objects.
    pub version: u64,
}

/// Sends a write to the API server. An object that no longer exists is not an error. A conflict is one: a write that
/// lost against others is repeated, and one for an earlier pod of the same name until the watch reports that this pod is gone.
pub(super) async fn send(client: &Client, write: &Write) -> Result<Written> {
    let outcome = match write {
        Write::Status(pod, status) => {
            // With the uid the server rejects the patch for another pod of the same name.
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
        Write::Boot(node, boot_id) => {
            let patch = json!({"status": {"nodeInfo": {"bootID": boot_id}}});
            patch_node(client, node, patch).await.map(|_| Written::default())
        }
        Write::Gpus(node, gpus) => {
            let resources: BTreeMap<_, _> =
                gpus.names().map(|name| (name.to_string(), gpus.amount(name).to_string())).collect();
            let patch = json!({"status": {"allocatable": resources, "capacity": resources}});
            let node = patch_node(client, node, patch).await;
            node.map(|node| Written { version: version(&node) })
        }
        Write::Detect(node) => {
            Announcer::new(client.clone(), node).announce(true, Instant::now()).await?;
            return Ok(Written::default());
        }
        Write::Report(node, seen, report) => {
            Publisher::new(client.clone(), node).publish(seen, report, Instant::now()).await?;
            return Ok(Written::default());
        }
    };
    match outcome {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(Written::default()),
        outcome => Ok(outcome?),
    }
}

/// Writes the status of a Node with a heartbeat, as kubelet does. By that kubelet owns its conditions: if the only owned condition of a
/// Node is removed by server-side apply, the API server removes those without an owner as well.
async fn patch_node(client: &Client, name: &str, mut patch: Value) -> kube::Result<PartialObjectMeta<Node>> {
    let nodes = Api::<PartialObjectMeta<Node>>::all(client.clone());
    let (message, now) = ("kubelet is posting ready status", Time(Timestamp::now()));
    patch["status"]["conditions"] = json!([{"type": "Ready", "message": message, "lastHeartbeatTime": now}]);
    nodes.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await
}

/// Returns an object's resource version as a number. Later versions are larger.
pub(super) fn version(object: &impl ResourceExt) -> u64 {
    object.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn pods(client: &Client, pod: &PodId) -> Api<PartialObjectMeta<Pod>> {
    Api::namespaced(client.clone(), &pod.namespace)
}
