//! Uninstall: what the chart's hook does before its objects are deleted. The operator leaves all nodes while it is still running;
//! then it is removed, with the detector and the probe, and what only these could write again.

use std::{fmt::Debug, time::Duration};

use futures::{StreamExt, TryStreamExt, stream};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::{
    assess::pod_failure::{DETECTOR_DAEMON_SET, PROBE_DAEMON_SET},
    carry::Class,
};
use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    coordination::v1::Lease,
    core::v1::Node,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use thiserror::Error;
use tokio::time::{Instant, sleep};

use crate::error::{self, request};

/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// The number of Nodes in a page.
const PAGE: u32 = 500;
/// The number of Nodes that are written at a time.
const AT_ONCE: usize = 16;

/// The operator could not be removed in time.
#[derive(Debug, Error)]
#[error(
    "the operator has not been removed within {} s: {left}. The next helm uninstall continues. With --no-hooks the chart is uninstalled now, \
     and nodes keep what they have", within.as_secs()
)]
pub struct UninstallError {
    within: Duration,
    /// What is left.
    #[source]
    pub left: Left,
}

/// A reason why the operator cannot be removed yet.
#[derive(Debug, Error)]
pub enum Left {
    /// A request failed.
    #[error(transparent)]
    Request(#[from] error::Error),
    /// The operator has not left all nodes: the policies, each with its message.
    #[error("policies are still being deleted: {}", .0.join("; "))]
    Policies(Vec<String>),
    /// Pods of this workload are still terminating.
    #[error("pods of {0} are still terminating")]
    Pods(String),
}

/// Removes all policies from the cluster, then the operator, the detector and the probe, then the label of nodes with GPUs, the GpuNodes and
/// the Lease. `operator` is the name of the Deployment and of the Lease.
///
/// What is left is determined in each attempt, so that this may be interrupted and started again at any time.
///
/// # Errors
/// Returns what was still there, or the last request that failed, after the time `within`.
pub async fn uninstall(
    client: &Client,
    namespace: &str,
    operator: &str,
    within: Duration,
) -> Result<(), UninstallError> {
    let until = Instant::now() + within;
    let mut said = String::new();
    while let Err(left) = attempt(client, namespace, operator).await {
        if Instant::now() >= until {
            return Err(UninstallError { within, left });
        }
        // Each message once: an attempt is made every second.
        let words = left.to_string();
        if words != said {
            tracing::info!("waiting: {words}");
            said = words;
        }
        sleep(PAUSE).await;
    }
    Ok(())
}

/// Takes each step whose prerequisites are met.
async fn attempt(client: &Client, namespace: &str, operator: &str) -> Result<(), Left> {
    delete_policies(&Api::all(client.clone())).await?;
    let deployments = Api::<Deployment>::namespaced(client.clone(), namespace);
    let sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
    let workloads = [
        running(&deployments, operator).await?,
        running(&sets, DETECTOR_DAEMON_SET).await?,
        running(&sets, PROBE_DAEMON_SET).await?,
    ];
    if let Some(what) = workloads.into_iter().flatten().next() {
        return Err(Left::Pods(what));
    }
    remove_labels(&Api::all(client.clone())).await?;
    let gpu_nodes = Api::<GpuNode>::all(client.clone());
    let (params, all) = <(DeleteParams, ListParams)>::default();
    found(request("delete the GpuNodes".into(), gpu_nodes.delete_collection(&params, &all)).await)?;
    let leases = Api::<Lease>::namespaced(client.clone(), namespace);
    found(request(format!("delete Lease {operator}"), leases.delete(operator, &params)).await)?;
    Ok(())
}

/// Deletes all policies. Fails as long as one exists: the operator removes its finalizer once it has left the policy's nodes.
async fn delete_policies(api: &Api<ClusterGpuPolicy>) -> Result<(), Left> {
    let all = found(request("list policies".into(), api.list(&ListParams::default())).await)?;
    let Some(all) = all.filter(|all| !all.items.is_empty()) else { return Ok(()) };
    for policy in all.iter().filter(|policy| policy.metadata.deletion_timestamp.is_none()) {
        let name = policy.name_any();
        tracing::info!(policy = name, "deleting the policy");
        found(request(format!("delete policy {name}"), api.delete(&name, &DeleteParams::default())).await)?;
    }
    Err(Left::Policies(all.iter().map(message).collect()))
}

/// Returns the name of a policy, with its message.
fn message(policy: &ClusterGpuPolicy) -> String {
    let message = policy.status.as_ref().map(|status| status.summary.message.as_str()).filter(|text| !text.is_empty());
    format!("{} ({})", policy.name_any(), message.unwrap_or("no operator has observed it"))
}

/// Deletes a workload with its pods, and returns its name as long as one of these is running.
async fn running<K>(api: &Api<K>, name: &str) -> Result<Option<String>, error::Error>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let what = format!("{} {name}", K::kind(&()));
    // In the foreground, the object exists until its pods have ended. A second deletion changes nothing.
    let deleted = request(format!("delete {what}"), api.delete(name, &DeleteParams::foreground())).await;
    Ok(found(deleted)?.map(|_| what))
}

/// Removes the label of nodes with GPUs.
async fn remove_labels(api: &Api<Node>) -> Result<(), error::Error> {
    let without = json!({"metadata": {"labels": {keys::PRESENT: null}}});
    loop {
        // Those of the next page are the first ones without the label.
        let labelled = ListParams::default().labels(keys::PRESENT).limit(PAGE);
        let page = request("list the nodes with GPUs".into(), api.list_metadata(&labelled)).await?;
        if page.items.is_empty() {
            return Ok(());
        }
        let remove = async |name: String| {
            let (params, patch) = (PatchParams::default(), Patch::Merge(&without));
            found(request(format!("remove the label of node {name}"), api.patch_metadata(&name, &params, &patch)).await)
        };
        let names = stream::iter(page.items.iter().map(ResourceExt::name_any));
        names.map(remove).buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await?;
    }
}

/// Returns the answer of a request; none if the object, or its kind, does not exist.
fn found<T>(answer: Result<T, error::Error>) -> Result<Option<T>, error::Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if error.class() == Class::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
