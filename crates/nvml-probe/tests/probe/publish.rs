//! The API requests of a probe.

use std::{
    future::Future,
    time::{Duration, Instant},
};

use gpu_operator_crd::report::{Gpu, NvmlFacts, NvmlState, Report};
use http::StatusCode;
use nvml_probe::report::gpu_node::{
    GpuNodeFields, GpuNodeView, PublishError, Published, Publisher, Requests, watch_gpu_node,
};
use serde_json::{Value, json};
use test_api_server::{Api, Fault};
use tokio::sync::watch;

use crate::api_server::{PATH, asked, has_none, refuses_next};

const CREATE: &str = "POST /apis/gpu.nodestack.dev/v1alpha1/gpunodes?&fieldManager=nvml-probe";
const PATCH: &str = "PATCH /apis/gpu.nodestack.dev/v1alpha1/gpunodes/n1/status?&force=true&fieldManager=nvml-probe";

fn report(gpus: usize) -> Report {
    let gpus = (0..gpus).map(|bus| Gpu {
        pci_address: format!("0000:{bus:02x}:00.0"),
        device_id: "2330".to_owned(),
        ..Gpu::default()
    });
    Report { probe_version: "1".to_owned(), boot_id: "boot".to_owned(), gpus: gpus.collect(), ..Report::default() }
}

fn present(report: Option<Report>) -> GpuNodeView {
    GpuNodeView::Present(Box::new(GpuNodeFields { report, ..GpuNodeFields::default() }))
}

fn stored(report: &Report) -> Value {
    json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": "n1"},
        "spec": {},
        "status": {"report": report},
    })
}

fn patch(report: &Report) -> Value {
    json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": "n1"},
        "status": {"report": report},
    })
}

fn names(asked: &[(String, Value)]) -> Vec<&str> {
    asked.iter().map(|(request, _)| request.as_str()).collect()
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(30), future).await.unwrap()
}

#[tokio::test]
async fn a_node_with_gpus_gets_gpunode_and_report_in_two_requests() {
    let server = Api::new();
    let published =
        Publisher::new(server.client(), "n1").publish(&GpuNodeView::Absent, &report(2), Instant::now()).await.unwrap();
    assert_eq!(published, Published::Created);
    let bare = json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1",
        "kind": "GpuNode",
        "metadata": {"name": "n1"},
        "spec": {},
    });
    assert_eq!(asked(&server), [(CREATE.to_owned(), bare), (PATCH.to_owned(), patch(&report(2)))]);
}

#[tokio::test]
async fn what_is_unknown_absent_or_unchanged_is_not_written() {
    let server = Api::new();
    let mut publisher = Publisher::new(server.client(), "n1");
    for (seen, gpus) in [(GpuNodeView::Unknown, 2), (GpuNodeView::Absent, 0), (present(Some(report(2))), 2)] {
        let outcome = publisher.publish(&seen, &report(gpus), Instant::now()).await.unwrap();
        assert_eq!(outcome, Published::Unchanged, "{seen:?}");
    }
    assert_eq!(asked(&server), []);
    // A GpuNode that exists is updated without GPUs, too.
    server.put(PATH, stored(&report(2)));
    assert_eq!(
        publisher.publish(&present(Some(report(2))), &report(0), Instant::now()).await.unwrap(),
        Published::Report
    );
    let asked = asked(&server);
    assert_eq!(names(&asked), [PATCH]);
    assert_eq!(asked[0].1["status"]["report"]["gpus"], json!([]));
}

#[tokio::test]
async fn a_gpunode_deleted_without_an_owner_is_created_less_often() {
    let server = Api::new();
    let mut publisher = Publisher::new(server.client(), "n1");
    let (start, mut created) = (Instant::now(), Vec::new());
    for second in 0..3600 {
        // The operator deletes it after a minute, and the watch reports that.
        let is_new = created.last().is_some_and(|last| second - last < 60);
        let seen = if is_new { present(Some(report(1))) } else { GpuNodeView::Absent };
        if !is_new {
            has_none(&server);
        }
        let outcome = publisher.publish(&seen, &report(1), start + Duration::from_secs(second)).await;
        match outcome {
            Ok(Published::Created) => created.push(second),
            Ok(done) => assert!(is_new && done == Published::Unchanged),
            Err(error) => assert!(error.to_string().contains("NotFound"), "{error}"),
        }
    }
    assert_eq!(created, [0, 60, 120, 180, 240, 300, 364, 492, 748, 1260, 1860, 2460, 3060]);
    let owned = GpuNodeFields { owned: true, report: Some(report(1)), ..GpuNodeFields::default() };
    let now = start + Duration::from_mins(61);
    publisher.publish(&GpuNodeView::Present(Box::new(owned)), &report(1), now).await.unwrap();
    has_none(&server);
    assert_eq!(publisher.publish(&GpuNodeView::Absent, &report(1), now).await.unwrap(), Published::Created);
}

#[tokio::test]
async fn a_gpunode_is_written_before_the_watch_reports_its_creation() {
    let server = Api::new();
    let mut publisher = Publisher::new(server.client(), "n1");
    let now = Instant::now();
    publisher.publish(&GpuNodeView::Absent, &report(1), now).await.unwrap();
    assert_eq!(publisher.publish(&GpuNodeView::Absent, &report(2), now).await.unwrap(), Published::Report);
    assert_eq!(names(&asked(&server)), [CREATE, PATCH, PATCH]);
}

#[tokio::test]
async fn a_gpunode_that_another_agent_has_created_is_written() {
    let server = Api::new();
    server.put(PATH, stored(&report(0)));
    let mut publisher = Publisher::new(server.client(), "n1");
    publisher.publish(&GpuNodeView::Absent, &report(1), Instant::now()).await.unwrap();
    assert_eq!(names(&asked(&server)), [CREATE, PATCH]);
    assert_eq!(server.get(PATH)["status"]["report"], json!(report(1)));
}

#[tokio::test]
async fn a_rejection_is_an_error_and_the_next_attempt_writes() {
    let server = Api::new();
    server.put(PATH, stored(&report(1)));
    let mut publisher = Publisher::new(server.client(), "n1");
    refuses_next(&server, StatusCode::FORBIDDEN);
    let error = publisher.publish(&present(Some(report(1))), &report(2), Instant::now()).await.unwrap_err();
    assert!(matches!(error, PublishError::Api(_)), "{error}");
    assert_eq!(
        publisher.publish(&present(Some(report(1))), &report(2), Instant::now()).await.unwrap(),
        Published::Report
    );
}

#[tokio::test]
async fn a_server_that_drops_a_field_is_not_written_to_repeatedly() {
    let server = Api::new();
    server.fail(|made| made.subresource == "status", Fault::Drops("/status/report/nvml"));
    let mut report = report(1);
    report.nvml = NvmlFacts { state: NvmlState::Failing, gpus: None, message: Some("why".to_owned()) };
    let mut publisher = Publisher::new(server.client(), "n1");
    publisher.publish(&GpuNodeView::Absent, &report, Instant::now()).await.unwrap();
    asked(&server);
    let kept: Report = serde_json::from_value(server.get(PATH)["status"]["report"].clone()).unwrap();
    assert_ne!(kept, report);
    let seen = present(Some(kept));
    assert_eq!(publisher.publish(&seen, &report, Instant::now()).await.unwrap(), Published::Unchanged);
    assert_eq!(asked(&server), []);
    // A later change by a third party is overwritten.
    assert_eq!(publisher.publish(&present(None), &report, Instant::now()).await.unwrap(), Published::Report);
}

#[tokio::test]
async fn only_the_nodes_own_gpunode_is_watched_and_its_spec_is_read() {
    let server = Api::new();
    let mut object = stored(&report(2));
    object["spec"] = json!({"releaseDriver": true, "reportHolders": true, "fieldOfTheFuture": {"x": 1}});
    object["status"]["phase"] = json!("PhaseOfTheFuture");
    object["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"}]);
    server.put(PATH, object);
    let (sender, mut seen) = watch::channel(GpuNodeView::Unknown);
    let follower = tokio::spawn(watch_gpu_node(server.client(), "n1".to_owned(), sender));
    let now = soon(seen.wait_for(|seen| *seen != GpuNodeView::Unknown)).await.unwrap().clone();
    assert_eq!(
        now,
        GpuNodeView::Present(Box::new(GpuNodeFields {
            requests: Requests { release: true, holders: true },
            owned: true,
            report: Some(report(2)),
            ..GpuNodeFields::default()
        }))
    );
    for (request, _) in asked(&server) {
        assert!(request.contains("fieldSelector=metadata.name%3Dn1"), "{request}");
    }
    drop(seen);
    soon(follower).await.unwrap();
}

#[tokio::test]
async fn a_failed_watch_is_retried() {
    let server = Api::new();
    refuses_next(&server, StatusCode::FORBIDDEN);
    let (sender, mut seen) = watch::channel(GpuNodeView::Unknown);
    let _follower = tokio::spawn(watch_gpu_node(server.client(), "n1".to_owned(), sender));
    assert_eq!(*soon(seen.wait_for(|seen| *seen != GpuNodeView::Unknown)).await.unwrap(), GpuNodeView::Absent);
}

#[test]
fn an_unreadable_report_counts_as_none() {
    let object = json!({"metadata": {"name": "n1"}, "spec": {}, "status": {"report": {"gpus": "many"}}});
    let own = GpuNodeFields::from(serde_json::from_value::<kube::api::DynamicObject>(object).unwrap());
    assert_eq!(own, GpuNodeFields::default());
}
