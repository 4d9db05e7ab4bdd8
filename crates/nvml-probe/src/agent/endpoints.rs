//! Serves the probe's HTTP endpoints: `/livez`, `/readyz` (503 with the reason) and `/metrics`.
//!
//! The endpoints are served by the agent's own thread, so an agent that hangs fails its probes by not answering.

use std::{sync::Arc, time::Instant};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use super::{heartbeat::Heartbeat, metrics::Metrics};

/// The state that the endpoints expose.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// The agent's progress.
    pub heartbeat: Arc<Heartbeat>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// Returns the routes.
pub fn router(telemetry: Telemetry) -> Router {
    Router::new()
        .route(
            "/livez",
            get(async |State(telemetry): State<Telemetry>| answer(telemetry.heartbeat.alive(Instant::now()))),
        )
        .route(
            "/readyz",
            get(async |State(telemetry): State<Telemetry>| answer(telemetry.heartbeat.ready(Instant::now()))),
        )
        .route("/metrics", get(metrics))
        .with_state(telemetry)
}

fn answer(outcome: Result<(), String>) -> Response {
    match outcome {
        Ok(()) => "ok\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why + "\n").into_response(),
    }
}

async fn metrics(State(telemetry): State<Telemetry>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match telemetry.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    async fn get_path(telemetry: &Telemetry, path: &str) -> (StatusCode, String) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(telemetry.clone()).oneshot(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    fn telemetry() -> Telemetry {
        Telemetry { heartbeat: Arc::new(Heartbeat::new(Duration::ZERO)), metrics: Arc::new(Metrics::new("n1")) }
    }

    #[tokio::test]
    async fn before_the_first_look_only_readyz_fails_and_gives_the_reason() {
        let telemetry = telemetry();
        let (status, text) = get_path(&telemetry, "/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("GpuNode"), "{text}");
        assert_eq!(get_path(&telemetry, "/livez").await, (StatusCode::OK, "ok\n".to_owned()));
        let (status, text) = get_path(&telemetry, "/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("nvml_probe_looks_total{node=\"n1\",result=\"Done\"} 0"), "{text}");
    }

    #[tokio::test]
    async fn an_agent_that_is_stuck_is_not_alive() {
        let telemetry = telemetry();
        // The timeout is zero, so it has passed as soon as the clock advances.
        let begin = Instant::now();
        telemetry.heartbeat.look_started(begin);
        while Instant::now() == begin {
            std::hint::spin_loop();
        }
        let (status, text) = get_path(&telemetry, "/livez").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("no look"), "{text}");
    }
}
