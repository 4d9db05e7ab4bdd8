//! The watches of the CRDs: what the operator does, and does not do, while they are of another version.

use std::time::Duration;

use axum::http::StatusCode;
use gpu_operator_crd::{
    keys,
    schema_revision::{ANNOTATION, SCHEMA_REVISION},
};
use serde_json::{Value, json};

use crate::{
    api::{Api, Fault, Made},
    cluster::{Cluster, POLICIES, SETS},
};

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

/// Returns status and reason of the policy's condition.
fn degraded(cluster: &Cluster) -> (String, String) {
    let (status, reason, _) = cluster.condition(&format!("{POLICIES}/all"), "Degraded");
    (status, reason)
}

#[tokio::test(start_paused = true)]
async fn with_crds_of_another_version_nothing_is_pruned() {
    let cluster = Cluster::running(2);
    cluster.run_for(Duration::from_mins(3)).await;
    assert!(cluster.is_ready() && prunes(&cluster).await, "no CRD is known");
    for (revision, reason) in [(None, "CrdsOutdated"), (Some(SCHEMA_REVISION + 1), "CrdsNewer")] {
        set_revision(&cluster.api, GPU_NODES, revision);
        assert!(!prunes(&cluster).await, "{reason}");
        assert_eq!(degraded(&cluster).0, "False", "it lasts ten seconds");
        cluster.run_for(Duration::from_secs(20)).await;
        assert_eq!(degraded(&cluster), ("True".into(), reason.into()));
        cluster.api.take();
        cluster.run_for(Duration::from_mins(30)).await;
        let made: Vec<_> = cluster.api.take().into_iter().filter(Made::is_write).collect();
        assert!(made.is_empty(), "settled: {made:?}");
        set_revision(&cluster.api, GPU_NODES, Some(SCHEMA_REVISION));
        cluster.run_for(Duration::from_secs(10)).await;
        assert_eq!(degraded(&cluster).0, "False");
        assert!(prunes(&cluster).await, "as before");
    }
}

#[tokio::test(start_paused = true)]
async fn crds_that_may_not_be_read_prevent_nothing() {
    let (cluster, sim) = Cluster::new(2);
    set_revision(&cluster.api, GPU_NODES, None);
    cluster.api.fail(|made| if made.path == CRDS { Fault::Refused(StatusCode::FORBIDDEN) } else { Fault::None });
    cluster.start_operator(&sim);
    cluster.run_surroundings(sim);
    cluster.run_for(Duration::from_mins(3)).await;
    assert!(cluster.is_ready() && prunes(&cluster).await);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_before_the_crds_are_known() {
    let (cluster, sim) = Cluster::new(2);
    let unavailable = StatusCode::INTERNAL_SERVER_ERROR;
    cluster.api.fail(move |made| if made.path == CRDS { Fault::Refused(unavailable) } else { Fault::None });
    cluster.start_operator(&sim);
    cluster.run_for(Duration::from_mins(1)).await;
    let written: Vec<Value> = cluster.api.take().into_iter().filter(Made::is_write).map(|made| made.body).collect();
    assert!(written.is_empty(), "{written:?}");
}
