//! An API server with one GpuNode, over HTTP, which collects the reports that the probe writes.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, Receiver, Sender},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

const NODE: &str = "n1";

/// The server. It runs until the end of the test.
pub struct Api {
    address: String,
    reports: Receiver<Value>,
}

impl Api {
    pub fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        let (sender, reports) = mpsc::channel();
        thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let sender = sender.clone();
                // The thread ends when the probe closes the connection.
                thread::spawn(move || while answer(&connection, &sender).is_some() {});
            }
        });
        Self { address, reports }
    }

    /// Returns a kubeconfig for the server.
    pub fn kubeconfig(&self) -> String {
        format!(
            "{{apiVersion: v1, kind: Config, current-context: c, clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
             contexts: [{{name: c, context: {{cluster: c, user: c}}}}], users: [{{name: c, user: {{}}}}]}}",
            self.address
        )
    }

    /// Waits for the next report.
    pub fn report(&self) -> Value {
        self.reports.recv_timeout(Duration::from_mins(1)).expect("a report")
    }
}

/// Reads and answers one request; returns `None` after the last one.
fn answer(mut connection: &TcpStream, reports: &Sender<Value>) -> Option<()> {
    let mut reader = BufReader::new(connection);
    let mut lines = reader.by_ref().lines().map_while(Result::ok).take_while(|line| !line.is_empty());
    let request = lines.next()?;
    let length = lines
        .filter_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok())
        .last()
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let mut node = json!({"apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": NODE}});
    if request.contains("watch=true") {
        // Nothing changes.
        return connection.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").ok();
    }
    let answer = if request.starts_with("PATCH ") {
        let body: Value = serde_json::from_slice(&body).ok()?;
        node["status"] = body["status"].clone();
        reports.send(body["status"]["report"].clone()).ok()?;
        node
    } else {
        json!({
            "apiVersion": "gpu.nodestack.dev/v1alpha1",
            "kind": "GpuNodeList",
            "metadata": {"resourceVersion": "7"},
            "items": [node],
        })
    };
    let answer = answer.to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n", answer.len());
    connection.write_all((head + &answer).as_bytes()).ok()
}
