//! The agent as a process.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use test_support::host::Host;

use crate::{PROBE, process::Process};

/// A probe that finds its API server at this address.
fn probe(host: &Host, server: &TcpListener) -> Command {
    let config = format!(
        "{{apiVersion: v1, kind: Config, current-context: c, \
         clusters: [{{name: c, cluster: {{server: 'http://{}'}}}}], \
         contexts: [{{name: c, context: {{cluster: c, user: c}}}}], users: [{{name: c, user: {{}}}}]}}",
        server.local_addr().unwrap()
    );
    fs::write(host.path("kubeconfig"), config).unwrap();
    let mut command = Command::new(PROBE);
    command
        .args(["run", "--host-root"])
        .arg(host.root().as_path())
        .env("KUBECONFIG", host.path("kubeconfig"))
        .env("NODE_NAME", "n1")
        .env_remove("KUBERNETES_SERVICE_HOST")
        .stderr(Stdio::null());
    command
}

fn ends(probe: &mut Process) {
    kill(Pid::from_raw(i32::try_from(probe.0.id()).unwrap()), Signal::SIGTERM).unwrap();
    assert_eq!(probe.0.wait().unwrap().code(), Some(0));
}

#[test]
fn the_probe_names_itself_and_exits_at_once_without_an_api() {
    let (host, server) = (Host::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let mut probe = Process(probe(&host, &server).spawn().unwrap());
    let (connection, _) = server.accept().unwrap();
    let request: Vec<String> =
        BufReader::new(&connection).lines().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
    assert!(request[0].starts_with("GET /apis/gpu.nodestack.dev/v1alpha1/gpunodes?"), "{request:?}");
    assert!(request[0].contains("metadata.name%3Dn1"), "{request:?}");
    let agent = concat!("user-agent: nvml-probe/", env!("CARGO_PKG_VERSION"));
    assert!(request.iter().any(|line| line.eq_ignore_ascii_case(agent)), "{request:?}");
    ends(&mut probe);
}

#[test]
fn the_probe_is_alive_and_not_ready_without_the_api_server() {
    let (host, server) = (Host::new(), TcpListener::bind("127.0.0.1:0").unwrap());
    let mut command = probe(&host, &server);
    let mut probe = Process(command.args(["--listen", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap());
    let log = BufReader::new(probe.0.stderr.take().unwrap()).lines();
    let address = log.map(Result::unwrap).find_map(|line| Some(line.split_once("address=")?.1.to_owned())).unwrap();
    let get = |path: &str| {
        let mut connection = TcpStream::connect(&address).unwrap();
        write!(connection, "GET {path} HTTP/1.1\r\nHost: n1\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    };
    assert!(get("/livez").starts_with("HTTP/1.1 200"));
    let unready = get("/readyz");
    assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("GpuNode"), "{unready}");
    assert!(get("/metrics").contains("nvml_probe_looks_total{node=\"n1\",result=\"Done\"} 0"));
    ends(&mut probe);
}

#[test]
fn a_probe_without_a_node_name_fails() {
    let probe = Command::new(PROBE).arg("run").env_remove("NODE_NAME").output().unwrap();
    assert_eq!(probe.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&probe.stderr).contains("--node-name"));
}
