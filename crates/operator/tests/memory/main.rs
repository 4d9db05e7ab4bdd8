//! The memory of the operator's process in a cluster whose tenants create objects as large as the API server accepts.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod objects;

use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    path::Path,
    process::Stdio,
    time::{Duration, Instant},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    time::sleep,
};

/// How long the operator may take; it takes a third of it.
const PATIENCE: Duration = Duration::from_mins(1);
/// The size of the unit in which the kernel and the chart state memory.
const KIB: u64 = 1024;

/// Returns the memory limit of the operator's container in the chart, in KiB.
fn limit() -> u64 {
    let values = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/gpu-operator/values.yaml");
    let values = std::fs::read_to_string(values).expect("the chart's values");
    let values: serde_yaml::Value = serde_yaml::from_str(&values).expect("YAML");
    let limit = values["operator"]["resources"]["limits"]["memory"].as_str().expect("a limit").to_owned();
    limit.strip_suffix("Mi").expect("MiB").parse::<u64>().expect("a number") * KIB
}

/// Returns the maximum of the resident memory of a process so far, in KiB.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("a process that runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("VmHWM");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Returns an address on which nothing else listens: the second half of the loopback address is this process' id.
async fn free_address() -> SocketAddr {
    let [.., third, fourth] = std::process::id().to_be_bytes();
    let address = SocketAddrV4::new(Ipv4Addr::new(127, 1, third, fourth), 0);
    TcpListener::bind(address).await.expect("a listener").local_addr().expect("an address")
}

/// Returns the answer of the operator, if it is a success.
async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: operator\r\nConnection: close\r\n\r\n");
    let mut answer = String::new();
    stream.write_all(request.as_bytes()).await.ok()?;
    stream.read_to_string(&mut answer).await.ok()?;
    Some(answer).filter(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// Returns whether the operator is ready and has made a pass over the fleet.
async fn has_passed(address: SocketAddr) -> bool {
    get(address, "/readyz").await.is_some()
        && get(address, "/metrics").await.is_some_and(|metrics| !metrics.contains("gpu_operator_passes_total 0\n"))
}

/// Starts the operator as a client of this API server. It ends when it is dropped.
fn start(folder: &Path, server: SocketAddr, listen: SocketAddr) -> Child {
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{server}")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "users": [{"name": "test", "user": {}}],
    });
    let path = folder.join("kubeconfig");
    std::fs::write(&path, config.to_string()).expect("a file");
    Command::new(env!("CARGO_BIN_EXE_gpu-operator"))
        .args(["run", "--namespace", "gpu-operator", "--probe-image", "probe", "--listen", &listen.to_string()])
        .env("KUBECONFIG", path)
        .env("RUST_LOG", "warn")
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .expect("a process")
}

#[tokio::test]
async fn hostile_objects_do_not_exhaust_the_memory_limit() {
    let folder = tempfile::tempdir().expect("a folder");
    let api = objects::cluster();
    let address = api.listen().await;
    let lists = || api.take().iter().filter(|made| made.is_list()).count();
    let listen = free_address().await;
    let mut operator = start(folder.path(), address, listen);
    let process = operator.id().expect("a process that runs");
    let began = Instant::now();
    while !has_passed(listen).await {
        assert!(began.elapsed() < PATIENCE, "{} lists, at most {} MiB", lists(), peak(process) / KIB);
        assert_eq!(operator.try_wait().expect("a status"), None, "{} lists", lists());
        sleep(Duration::from_millis(200)).await;
    }
    let (peak, limit) = (peak(process), limit());
    operator.kill().await.expect("the end of the process");
    eprintln!("{} of {} MiB after {:?}: {} lists", peak / KIB, limit / KIB, began.elapsed(), lists());
    assert!(peak < limit, "{} of {} MiB", peak / KIB, limit / KIB);
}
