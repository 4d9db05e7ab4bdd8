//! The watches of the CRDs: while they are older than the operator, it does not lead.

use std::time::Duration;

use gpu_operator_crd::{
    keys,
    schema_revision::{ANNOTATION, SCHEMA_REVISION},
};
use http::StatusCode;
use serde_json::{Value, json};
use test_api_server::{Api, Fault, Made};

use crate::cluster::{Cluster, SETS};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub const GPU_NODES: &str = "gpunodes.gpu.nodestack.dev";

/// Creates or changes a CRD, which gets this schema revision.
pub fn set_revision(api: &Api, crd: &str, revision: Option<u32>) {
    api.write("helm", &format!("{CRDS}/{crd}"), |crd| {
        crd["metadata"]["annotations"] =
            revision.map_or(json!({}), |revision| json!({ANNOTATION: revision.to_string()}));
    });
}

/// Creates a DaemonSet that no node needs, and returns whether the operator deletes it.
async fn prunes(cluster: &Cluster) -> bool {
    let path = format!("{SETS}/driver-unneeded");
    cluster.api.write("user", &path, |set| *set = json!({"metadata": {"labels": {keys::STAGE: "driver"}}, "spec": {}}));
    cluster.run_for(Duration::from_secs(10)).await;
    let is_there = cluster.api.paths(SETS).contains(&path);
    if is_there {
        cluster.api.delete(&path);
    }
    !is_there
}

#[tokio::test(start_paused = true)]
async fn with_outdated_crds_no_replica_leads() {
    let (cluster, sim) = Cluster::new(2);
    cluster.start_replica(&sim, "a");
    cluster.start_replica(&sim, "b");
    cluster.run_surroundings(sim);
    cluster.run_for(Duration::from_mins(3)).await;
    assert!(cluster.is_ready() && prunes(&cluster).await, "no CRD is known");
    set_revision(&cluster.api, GPU_NODES, Some(SCHEMA_REVISION - 1));
    cluster.run_for(Duration::from_secs(1)).await;
    cluster.api.take();
    assert!(!prunes(&cluster).await);
    cluster.run_for(Duration::from_mins(30)).await;
    let operators = |made: &Made| made.is_write() && ["a", "b"].contains(&made.client);
    let made: Vec<_> = cluster.api.take().into_iter().filter(operators).collect();
    assert!(made.is_empty(), "{made:?}");
    set_revision(&cluster.api, GPU_NODES, Some(SCHEMA_REVISION));
    cluster.run_for(Duration::from_secs(30)).await;
    assert!(prunes(&cluster).await, "as before");
}

#[tokio::test(start_paused = true)]
async fn newer_crds_are_as_those_of_this_version() {
    let cluster = Cluster::running(2);
    set_revision(&cluster.api, GPU_NODES, Some(SCHEMA_REVISION + 1));
    cluster.run_for(Duration::from_mins(3)).await;
    assert!(cluster.is_ready() && prunes(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn crds_that_may_not_be_read_prevent_nothing() {
    let (cluster, sim) = Cluster::new(2);
    set_revision(&cluster.api, GPU_NODES, None);
    cluster.api.fail(|made| made.path == CRDS, Fault::Refused(StatusCode::FORBIDDEN));
    cluster.start_operator(&sim);
    cluster.run_surroundings(sim);
    cluster.run_for(Duration::from_mins(3)).await;
    assert!(cluster.is_ready() && prunes(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_crds_are_known() {
    let (cluster, sim) = Cluster::new(2);
    cluster.api.fail(|made| made.path == CRDS, Fault::Refused(StatusCode::INTERNAL_SERVER_ERROR));
    cluster.start_operator(&sim);
    cluster.run_for(Duration::from_mins(1)).await;
    let written: Vec<Value> = cluster.api.take().into_iter().filter(Made::is_write).map(|made| made.body).collect();
    assert!(written.is_empty(), "{written:?}");
}
