//! Uninstall: what the chart's hook does before its objects are deleted.
//!
//! By default policies stay, and what runs on their nodes: the operator is removed, and what only an operator can undo is undone in this
//! process ([`quiet`]). If the policies must be deleted, or there are none, the operator leaves all nodes while it is still running; then
//! it is removed, with the detector and the probe, and what only these could write again.

use std::{fmt::Debug, sync::Arc, time::Duration};

use clap::ValueEnum;
use futures::{
    StreamExt, TryStreamExt,
    stream::{self, FuturesUnordered},
};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, SchemaMismatch, keys};
use gpu_operator_plan::{
    catalogue::{Catalogue, CatalogueError},
    ground::{DETECTOR_DAEMON_SET, PROBE_DAEMON_SET},
    loop_memory::Class,
    settings::Settings,
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
use tokio::time::{Instant, sleep, sleep_until};

use crate::{
    election::Election,
    error::{self, request},
    reconcile::Loop,
    watch::Mirrors,
};

const PAUSE: Duration = Duration::from_secs(1);
const PAGE: u32 = 500;
/// The number of Nodes that are written at a time.
const AT_ONCE: usize = 16;

#[derive(Debug, Error)]
#[error(
    "the operator has not been removed within {} s: {left}. The next helm uninstall continues. With --no-hooks the chart is uninstalled now, \
     and nodes keep what they have", within.as_secs()
)]
pub struct UninstallError {
    within: Duration,
    #[source]
    pub left: Left,
}

#[derive(Debug, Error)]
pub enum Left {
    #[error(transparent)]
    Request(#[from] error::Error),
    #[error("policies are still being deleted: {}", .0.join("; "))]
    Policies(Vec<String>),
    /// Nodes may still have something that only an operator can undo.
    #[error(transparent)]
    Quiet(#[from] QuietError),
    #[error("pods of {0} are still terminating")]
    Pods(String),
}

/// What happens to policies that no user has deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "PascalCase")]
pub enum Policies {
    /// They stay, and with them what runs on their nodes.
    Keep,
    /// They are deleted, and the operator leaves their nodes.
    Delete,
}

pub struct Uninstall<'a> {
    pub client: &'a Client,
    pub namespace: &'a str,
    /// The name of the operator's Deployment and of its Lease.
    pub operator: &'a str,
    /// The name of this process in the Lease.
    pub identity: &'a str,
    pub policies: Policies,
}

impl Uninstall<'_> {
    /// Removes the operator. If a policy stays, only what needs an operator goes with it; otherwise detector and probe go, then the label of
    /// nodes with GPUs, the GpuNodes and the Lease.
    ///
    /// What is left is determined in each attempt, so that this may be interrupted and started again at any time.
    pub async fn run(&self, within: Duration) -> Result<(), UninstallError> {
        let until = Instant::now() + within;
        let mut said = String::new();
        while let Err(left) = self.attempt(until).await {
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
    async fn attempt(&self, until: Instant) -> Result<(), Left> {
        let api = Api::<ClusterGpuPolicy>::all(self.client.clone());
        let listed = found(request("list policies".into(), api.list(&ListParams::default())).await)?;
        let policies = listed.map(|listed| listed.items).unwrap_or_default();
        match self.policies {
            _ if policies.is_empty() => self.remove().await,
            Policies::Keep => self.keep(&policies, until).await,
            Policies::Delete => delete(&api, &policies).await,
        }
    }

    /// Removes the operator, and what needs one. Policies that users have deleted are waited for first, while the operator is running: only
    /// an operator completes that.
    async fn keep(&self, policies: &[ClusterGpuPolicy], until: Instant) -> Result<(), Left> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), self.namespace);
        let deleted: Vec<_> = policies.iter().filter(|policy| is_deleted(*policy)).map(message).collect();
        if !deleted.is_empty() {
            let what = format!("read Deployment {}", self.operator);
            let operator = request(what, deployments.get_metadata_opt(self.operator)).await?;
            if operator.is_some_and(|operator| !is_deleted(&operator)) {
                return Err(Left::Policies(deleted));
            }
            tracing::warn!("no operator completes the deletion of policies: {}", deleted.join("; "));
        }
        if let Some(what) = running(&deployments, self.operator).await? {
            return Err(Left::Pods(what));
        }
        quiet(self.client, self.namespace, self.operator, self.identity, until).await?;
        self.delete_lease().await?;
        let kept: Vec<_> = policies.iter().map(ResourceExt::name_any).collect();
        tracing::info!("the operator has been removed. What runs on the nodes of policies stays: {}", kept.join(", "));
        Ok(())
    }

    /// Removes the operator, detector and probe, and what only these could write again.
    async fn remove(&self) -> Result<(), Left> {
        let deployments = Api::<Deployment>::namespaced(self.client.clone(), self.namespace);
        let sets = Api::<DaemonSet>::namespaced(self.client.clone(), self.namespace);
        let workloads = [
            running(&deployments, self.operator).await?,
            running(&sets, DETECTOR_DAEMON_SET).await?,
            running(&sets, PROBE_DAEMON_SET).await?,
        ];
        if let Some(what) = workloads.into_iter().flatten().next() {
            return Err(Left::Pods(what));
        }
        remove_labels(&Api::all(self.client.clone())).await?;
        let gpu_nodes = Api::<GpuNode>::all(self.client.clone());
        let (params, all) = <(DeleteParams, ListParams)>::default();
        found(request("delete the GpuNodes".into(), gpu_nodes.delete_collection(&params, &all)).await)?;
        self.delete_lease().await?;
        tracing::info!("no policy is left, and the operator has been removed");
        Ok(())
    }

    async fn delete_lease(&self) -> Result<(), error::Error> {
        let leases = Api::<Lease>::namespaced(self.client.clone(), self.namespace);
        let (what, params) = (format!("delete Lease {}", self.operator), DeleteParams::default());
        found(request(what, leases.delete(self.operator, &params)).await).map(drop)
    }
}

/// Deletes all policies. Fails as long as one exists: the operator removes its finalizer once it has left the policy's nodes.
async fn delete(api: &Api<ClusterGpuPolicy>, policies: &[ClusterGpuPolicy]) -> Result<(), Left> {
    for policy in policies.iter().filter(|policy| !is_deleted(*policy)) {
        let name = policy.name_any();
        tracing::info!(policy = name, "deleting the policy");
        found(request(format!("delete policy {name}"), api.delete(&name, &DeleteParams::default())).await)?;
    }
    Err(Left::Policies(policies.iter().map(message).collect()))
}

fn is_deleted(object: &impl ResourceExt) -> bool {
    object.meta().deletion_timestamp.is_some()
}

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

#[derive(Debug, Error)]
pub enum QuietError {
    #[error("objects have not been listed: {}", .0.join(", "))]
    Unread(Vec<&'static str>),
    #[error("{0}: {remedy}", remedy = .0.remedy())]
    CrdOutdated(SchemaMismatch),
    #[error("another operator holds Lease {0}")]
    NotLeading(String),
    #[error("writes to nodes and policies have failed; the log lines before this one contain the errors")]
    Unwritten,
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
}

/// Makes passes as the replica `identity` of the operator, until nothing is left to write. `lease` is the name of the operator's Lease.
pub async fn quiet(
    client: &Client,
    namespace: &str,
    lease: &str,
    identity: &str,
    until: Instant,
) -> Result<(), QuietError> {
    let settings = Settings { namespace: namespace.to_owned(), quiets: true, ..Settings::default() };
    let mut election = Election::new(client.clone(), namespace, lease, identity);
    let leadership = election.leadership();
    let mirrors = Arc::<Mirrors>::default();
    let (passes, tasks) = Loop::new(client, settings, Catalogue::builtin()?, leadership.clone(), Arc::clone(&mirrors));
    // None of the watches ends.
    let followed = tasks.into_iter().collect::<FuturesUnordered<_>>().collect::<()>();
    let followed_and_elected = async { tokio::join!(followed, election.run(|| mirrors.may_lead())) };
    let outcome = tokio::select! {
        () = passes.settle() => Ok(()),
        _ = followed_and_elected => Err(QuietError::Unwritten),
        () = sleep_until(until) => Err(match (mirrors.missing(), mirrors.outdated_crd()) {
            (missing, _) if !missing.is_empty() => QuietError::Unread(missing),
            (_, Some(mismatch)) => QuietError::CrdOutdated(mismatch),
            _ if !leadership.holds() => QuietError::NotLeading(lease.to_owned()),
            _ => QuietError::Unwritten,
        }),
    };
    election.release().await;
    outcome
}
