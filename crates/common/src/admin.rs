//! The HTTP endpoints of a program for kubelet and Prometheus: `/livez`, `/readyz` and `/metrics`.

mod connections;

use std::{fmt, future::Future, io};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use tokio::net::TcpListener;

use self::connections::LIMITS;

/// What a program answers at its endpoints. It is asked at every request, so that answers must be quick.
pub trait Admin: Clone + Send + Sync + 'static {
    /// Whether the program works; one that does not is restarted by kubelet. One that answers at all works, unless it knows
    /// better.
    fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether the program serves its purpose.
    fn ready(&self) -> Result<(), String>;

    /// Returns the program's metrics in the text format of OpenMetrics.
    fn metrics(&self) -> Result<String, fmt::Error>;
}

/// Serves the endpoints on a listener for as long as the future is polled.
pub fn serve(listener: TcpListener, admin: impl Admin) -> impl Future<Output = io::Result<()>> + Send {
    connections::serve(listener, router(admin), LIMITS)
}

/// Returns the routes. `/livez` and `/readyz` answer 200, or 503 with the reason; `/metrics` answers 200.
fn router<A: Admin>(admin: A) -> Router {
    Router::new()
        .route("/livez", get(async |State(admin): State<A>| status(admin.alive())))
        .route("/readyz", get(async |State(admin): State<A>| status(admin.ready())))
        .route("/metrics", get(async |State(admin): State<A>| metrics(admin.metrics())))
        .with_state(admin)
}

fn status(outcome: Result<(), String>) -> Response {
    match outcome {
        Ok(()) => "ok\n".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, reason + "\n").into_response(),
    }
}

fn metrics(outcome: Result<String, fmt::Error>) -> Response {
    const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    match outcome {
        Ok(text) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

#[cfg(test)]
mod tests {
    use axum::{body::Body, http::Request};
    use tower::ServiceExt;

    use super::*;

    #[derive(Clone)]
    struct Program {
        alive: Result<(), String>,
        ready: Result<(), String>,
        metrics: Result<String, fmt::Error>,
    }

    impl Admin for Program {
        fn alive(&self) -> Result<(), String> {
            self.alive.clone()
        }

        fn ready(&self) -> Result<(), String> {
            self.ready.clone()
        }

        fn metrics(&self) -> Result<String, fmt::Error> {
            self.metrics.clone()
        }
    }

    async fn response(program: &Program, path: &str) -> (u16, String, Option<String>) {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router(program.clone()).oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let kind = response.headers().get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap().to_owned());
        let body = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned(), kind)
    }

    async fn text(program: &Program, path: &str) -> (u16, String) {
        let (status, text, _) = response(program, path).await;
        (status, text)
    }

    #[tokio::test]
    async fn a_program_that_works_answers_200_everywhere() {
        let program = Program { alive: Ok(()), ready: Ok(()), metrics: Ok("# EOF\n".to_owned()) };
        assert_eq!(text(&program, "/livez").await, (200, "ok\n".to_owned()));
        assert_eq!(text(&program, "/readyz").await, (200, "ok\n".to_owned()));
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8".to_owned();
        assert_eq!(response(&program, "/metrics").await, (200, "# EOF\n".to_owned(), Some(kind)));
        assert_eq!(text(&program, "/").await.0, 404);
    }

    #[tokio::test]
    async fn each_endpoint_gives_its_own_reason() {
        let program =
            Program { alive: Err("hangs".into()), ready: Err("lists Nodes".into()), metrics: Err(fmt::Error) };
        assert_eq!(text(&program, "/livez").await, (503, "hangs\n".to_owned()));
        assert_eq!(text(&program, "/readyz").await, (503, "lists Nodes\n".to_owned()));
        assert_eq!(text(&program, "/metrics").await.0, 500);
    }

    #[tokio::test]
    async fn the_endpoints_are_served_on_the_listener() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let program = Program { alive: Ok(()), ready: Ok(()), metrics: Ok(String::new()) };
        let server = tokio::spawn(serve(listener, program));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
        server.abort();
    }
}
