//! The HTTP endpoints of a program for kubelet and Prometheus: `/livez`, `/readyz` and `/metrics`.
//!
//! Anyone in the network may open connections to them. Their number, their duration and the size of requests are bounded, so that
//! clients can neither exhaust the program's memory nor block the answers to kubelet's probes.

use std::{collections::VecDeque, fmt, future::Future, io, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

/// What a program answers at its endpoints. It is asked at every request, so that answers must be quick.
pub trait Admin: Clone + Send + Sync + 'static {
    /// Whether the program works; one that does not is restarted by kubelet. One that answers at all works, unless it knows
    /// better.
    fn alive(&self) -> Result<(), String> {
        Ok(())
    }

    /// Whether the program serves its purpose.
    fn ready(&self) -> Result<(), String>;

    /// In the text format of OpenMetrics.
    fn metrics(&self) -> Result<String, fmt::Error>;
}

/// Serves the endpoints on a listener for as long as the future is polled.
pub fn serve(listener: TcpListener, admin: impl Admin) -> impl Future<Output = io::Result<()>> + Send {
    serve_within(listener, router(admin), LIMITS)
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

#[derive(Clone, Copy, Debug)]
struct Limits {
    /// The most connections at once. Each may hold a copy of all metrics. Kubelet and two Prometheus servers use four.
    connections: usize,
    /// The time in which a client must send the head of its request.
    head: Duration,
    /// The largest head, in bytes.
    head_bytes: usize,
    /// The time after which a connection is closed, even if its answer is incomplete.
    total: Duration,
}

/// The bounds of all endpoints. A connection may take three times Prometheus' default for a scrape.
const LIMITS: Limits =
    Limits { connections: 16, head: Duration::from_secs(5), head_bytes: 16 * 1024, total: Duration::from_secs(30) };

/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves clients for as long as the future is polled. One connection more than the maximum closes the oldest one
/// instead of waiting for it: answers are quick, so the oldest belong to clients that do not send or read.
async fn serve_within(listener: TcpListener, routes: Router, limits: Limits) -> io::Result<()> {
    // Dropping the set closes all connections.
    let mut tasks = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        let Some(stream) = accept(&listener).await else { continue };
        while tasks.try_join_next().is_some() {}
        open.retain(|connection| !connection.is_finished());
        if open.len() >= limits.connections
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        open.push_back(tasks.spawn(answer(stream, routes.clone(), limits)));
    }
}

/// Returns the next connection; `None` after an error, which may be the client's or that of the whole program.
async fn accept(listener: &TcpListener) -> Option<TcpStream> {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    match listener.accept().await {
        Ok((stream, _)) => Some(stream),
        Err(error) => {
            if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
                sleep(PAUSE).await;
            }
            None
        }
    }
}

/// Answers one request. A client opens a new connection for the next one, so that no connection is idle.
async fn answer(stream: TcpStream, routes: Router, limits: Limits) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head)
        .max_buf_size(limits.head_bytes)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Errors are not logged: a client that sends invalid requests could fill the log.
    drop(timeout(limits.total, connection).await);
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use axum::{body::Body, http::Request, routing::get};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };
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
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let program = Program { alive: Ok(()), ready: Ok(()), metrics: Ok(String::new()) };
        let server = tokio::spawn(serve(listener, program));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /livez HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
        server.abort();
    }

    const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: n1\r\n\r\n";
    /// More than the buffers of both sockets hold.
    const LARGE: usize = 64 << 20;

    async fn server(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes =
            Router::new().route("/livez", get(async || "ok\n")).route("/metrics", get(async || "m".repeat(LARGE)));
        tokio::spawn(serve_within(listener, routes, limits));
        address
    }

    async fn connect(address: SocketAddr, sent: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(sent).await.unwrap();
        stream
    }

    /// Reads until the server closes the connection, and returns the text.
    async fn rest(mut stream: TcpStream) -> String {
        let mut text = Vec::new();
        // A connection that is reset has ended as well.
        let _ = stream.read_to_end(&mut text).await;
        String::from_utf8_lossy(&text).into_owned()
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_no_head_is_closed() {
        let address = server(LIMITS).await;
        for sent in [&b""[..], b"GET /livez HTTP/1.1\r\nHost: "] {
            let begun = Instant::now();
            rest(connect(address, sent).await).await;
            let passed = begun.elapsed();
            assert!(passed >= LIMITS.head && passed < LIMITS.head + Duration::from_secs(1), "{passed:?}");
        }
    }

    #[tokio::test]
    async fn a_connection_ends_with_its_answer() {
        let answer = rest(connect(server(LIMITS).await, REQUEST).await).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok\n"), "{answer}");
        assert!(answer.contains("connection: close"), "{answer}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_closed() {
        let address = server(LIMITS).await;
        let stream = connect(address, b"GET /metrics HTTP/1.1\r\nHost: n1\r\n\r\n").await;
        sleep(LIMITS.total + Duration::from_secs(1)).await;
        assert!(rest(stream).await.len() < LARGE, "the answer was cut off");
    }

    #[tokio::test]
    async fn many_connections_do_not_block_a_request() {
        let count = LIMITS.connections;
        // No connection is closed because of its time, and a request that waits for others fails.
        let (hour, minute) = (Duration::from_hours(1), Duration::from_mins(1));
        let address = server(Limits { head: hour, total: hour, ..LIMITS }).await;
        let mut idle = Vec::new();
        for _ in 0..3 * count {
            idle.push(connect(address, b"").await);
        }
        let answer = timeout(minute, rest(connect(address, REQUEST).await)).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        // The oldest were closed for the others.
        for stream in idle.drain(..=2 * count) {
            assert_eq!(timeout(minute, rest(stream)).await.unwrap(), "");
        }
        for mut stream in idle {
            stream.write_all(REQUEST).await.unwrap();
            assert!(rest(stream).await.starts_with("HTTP/1.1 200 OK"), "a newer one is still open");
        }
    }

    #[tokio::test]
    async fn a_large_head_is_rejected() {
        let address = server(LIMITS).await;
        let long = format!("GET /livez HTTP/1.1\r\nHost: n1\r\nA: {}\r\n\r\n", "a".repeat(2 * LIMITS.head_bytes));
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may close the connection before all has been sent.
        let _ = stream.write_all(long.as_bytes()).await;
        let answer = rest(stream).await;
        assert!(!answer.starts_with("HTTP/1.1 200"), "{answer}");
    }
}
