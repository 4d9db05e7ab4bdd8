//! The probe's HTTP endpoints and metrics while its agent runs: the stand-in NVML and a mocked API server.

use std::time::{Duration, Instant};

use gpu_host::observe::driver::CONTAINER_ROOT;
use http::StatusCode;
use nvml_probe::report::gpu_node::GpuNodeView;
use serde_json::json;
use test_api_server::Fault;

use crate::running::{GPUS, Running, existing, node, patient, served, soon};

/// Longer than any tolerated failure.
const LATER: Duration = Duration::from_secs(61);

/// Returns the metrics once one of their lines contains all of these parts.
async fn shows(agent: &Running, parts: &[&str]) -> String {
    soon(async {
        loop {
            let text = agent.telemetry.metrics.text().unwrap();
            if text.lines().any(|line| parts.iter().all(|part| line.contains(part))) {
                return text;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

#[tokio::test]
async fn a_fault_reaches_the_metrics_while_reports_are_rejected() {
    let host = served();
    host.serve_with(CONTAINER_ROOT, &GPUS, |machine| {
        let gpus = machine["devices"].as_array_mut().unwrap();
        gpus[0]["error"] = 15.into();
        gpus[1]["readings"] = json!({"thermal": {"gpu": 41}});
    });
    let agent = Running::start(&host, existing(false, None), patient());
    agent.server.fail(|_| true, Fault::Refused(StatusCode::INTERNAL_SERVER_ERROR));
    shows(&agent, &["report_writes_total", "\"Failed\"} 1"]).await;
    shows(&agent, &["gpu_health", "0000:06:00.0", "state=\"Unhealthy\",action="]).await;
    shows(&agent, &["gpu_cause", "0000:06:00.0", "GpuLost"]).await;
    shows(&agent, &["gpu_temperature_celsius", "0000:07:00.0", "41"]).await;
    assert_eq!(agent.report(), None);
    let heartbeat = &agent.telemetry.heartbeat;
    assert_eq!(heartbeat.ready(Instant::now()), Ok(()));
    let why = heartbeat.ready(Instant::now() + LATER).unwrap_err();
    assert!(why.contains("cannot write the report"), "{why}");
    agent.server.heal();
    agent.reports(|_| true).await;
    agent.end().await;
}

#[tokio::test]
async fn a_probe_with_nothing_to_write_stays_ready() {
    let host = node();
    let agent = Running::start(&host, GpuNodeView::Absent, patient());
    let report = agent.reports(|_| true).await;
    agent.end().await;
    let again = Running::start(&host, existing(false, Some(report)), patient());
    let text = shows(&again, &["looks_total", "\"Done\"} 2"]).await;
    assert!(text.contains("result=\"Written\"} 0"), "{text}");
    assert_eq!(again.telemetry.heartbeat.ready(Instant::now() + LATER), Ok(()));
    assert!(again.server.take().is_empty());
    again.end().await;
}

#[tokio::test]
async fn a_probe_that_cannot_read_its_host_reports_it_and_is_alive() {
    let host = node();
    let (bus, hidden) = (host.path("sys/bus"), host.path("sys/hidden"));
    std::fs::rename(&bus, &hidden).unwrap();
    let agent = Running::start(&host, existing(false, None), patient());
    shows(&agent, &["looks_total", "\"Failed\"} 1"]).await;
    let heartbeat = &agent.telemetry.heartbeat;
    let why = heartbeat.ready(Instant::now()).unwrap_err();
    assert!(why.contains("cannot read the host") && agent.server.take().is_empty(), "{why}");
    assert_eq!(heartbeat.alive(Instant::now()), Ok(()));
    std::fs::rename(&hidden, &bus).unwrap();
    shows(&agent, &["report_writes_total", "\"Written\"} 1"]).await;
    assert_eq!(heartbeat.ready(Instant::now() + LATER), Ok(()));
    agent.end().await;
}
