//! The agent as a process.
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests fail as tests do")]

mod support;

use std::{
    fs,
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use support::{Host, PROBE, Process};

#[test]
fn the_probe_names_itself_and_ends_at_once_while_the_api_server_says_nothing() {
    let host = Host::new();
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let config = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, \
         clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: c}}}}], users: [{{name: c, user: {{}}}}]}}",
        server.local_addr().unwrap()
    );
    fs::write(host.path("kubeconfig"), config).unwrap();
    let probe = Command::new(PROBE)
        .args(["run", "--host-root"])
        .arg(host.root().as_path())
        .env("KUBECONFIG", host.path("kubeconfig"))
        .env("NODE_NAME", "n1")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut probe = Process(probe);
    let (connection, _) = server.accept().unwrap();
    let request: Vec<String> =
        BufReader::new(&connection).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    assert!(request[0].starts_with("GET /apis/gpu.nodestack.dev/v1alpha1/gpunodes?"), "{request:?}");
    assert!(request[0].contains("metadata.name%3Dn1"), "{request:?}");
    let agent = concat!("user-agent: nvml-probe/", env!("CARGO_PKG_VERSION"));
    assert!(request.iter().any(|line| line.eq_ignore_ascii_case(agent)), "{request:?}");
    kill(Pid::from_raw(i32::try_from(probe.0.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(probe.0.wait().unwrap().code(), Some(0));
}

#[test]
fn a_probe_without_a_node_name_says_so() {
    let probe = Command::new(PROBE).arg("run").env_remove("NODE_NAME").output().unwrap();
    assert_eq!(probe.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&probe.stderr).contains("--node-name"));
}
