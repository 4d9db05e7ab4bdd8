//! Connections to the endpoints, which anyone in the network may open. Their number, their duration and the size of requests are
//! bounded, so that clients can neither exhaust the program's memory nor block the answers to kubelet's probes.

use std::{collections::VecDeque, io, time::Duration};

use axum::Router;
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

/// The bounds of connections.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
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
pub const LIMITS: Limits =
    Limits { connections: 16, head: Duration::from_secs(5), head_bytes: 16 * 1024, total: Duration::from_secs(30) };

/// The pause after an error of the listener, such as too many open files.
const PAUSE: Duration = Duration::from_secs(1);

/// Serves the routes to the clients of a listener for as long as the future is polled. One connection more than the maximum closes the
/// oldest one instead of waiting for it: answers are quick, so the oldest are those of clients that do not send or read.
pub async fn serve(listener: TcpListener, routes: Router, limits: Limits) -> io::Result<()> {
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

    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;

    const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nHost: n1\r\n\r\n";
    /// More than the buffers of both sockets hold.
    const LARGE: usize = 64 << 20;

    async fn server(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes =
            Router::new().route("/livez", get(async || "ok\n")).route("/metrics", get(async || "m".repeat(LARGE)));
        tokio::spawn(serve(listener, routes, limits));
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
