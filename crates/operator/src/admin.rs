//! The operator's own HTTP: `/livez`, `/readyz` (503 names what is missing) and `/metrics`.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};

use crate::{metrics::Metrics, watch::Mirrors};

/// What the endpoints tell of.
#[derive(Clone, Debug)]
pub struct Admin {
    /// The mirrors: the operator is ready once all have been listed.
    pub mirrors: Arc<Mirrors>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
}

/// The routes.
pub fn router(admin: Admin) -> Router {
    Router::new()
        .route("/livez", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(admin)
}

async fn ready(State(admin): State<Admin>) -> Response {
    let missing = admin.mirrors.missing();
    if missing.is_empty() {
        return "ok\n".into_response();
    }
    let text = format!("not listed yet: {}; look at the log for watches that fail\n", missing.join(", "));
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn metrics(State(admin): State<Admin>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match admin.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    async fn get_path(path: &str) -> (StatusCode, String) {
        let admin = Admin { mirrors: Arc::default(), metrics: Arc::default() };
        let request = Request::get(path).body(Body::empty()).expect("a request");
        let response = router(admin).oneshot(request).await.expect("an answer");
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.expect("a body");
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn readyz_names_what_has_not_been_listed() {
        let (status, text) = get_path("/readyz").await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        assert!(text.contains("ClusterGpuPolicy, Node, GpuNode"), "{text}");
    }

    #[tokio::test]
    async fn livez_and_metrics_answer_before_anything_is_listed() {
        assert_eq!(get_path("/livez").await.0, StatusCode::OK);
        let (status, text) = get_path("/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(text.contains("gpu_operator_passes_total 0"), "{text}");
    }
}
