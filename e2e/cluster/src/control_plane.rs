//! etcd, API server, controller manager and scheduler. They run in the cluster's network if there are real nodes, otherwise on
//! the machine's loopback.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use harness::{files::tail, paths::Paths, process::collect_seldom, progress::Step, records::records, wait::poll};

use super::{
    clients::{OPERATOR, PROBE, READER, kubectl},
    network, pki,
    state::{Nodes, Purpose, State},
};

const GRACE: Duration = Duration::from_secs(3);
const ETCD: &str = "etcd";
/// The components, in the order in which they start.
const NAMES: [&str; 4] = [ETCD, "kube-apiserver", "kube-controller-manager", "kube-scheduler"];

/// Starts an empty control plane and writes `target/e2e/kubeconfig`.
pub fn start(paths: &Paths, purpose: Purpose, nodes: Nodes) -> Result<State> {
    let step = Step::start("starting the control plane");
    let ports = free_ports::<7>()?;
    let state = State {
        purpose,
        nodes,
        program: copy_self(paths)?,
        etcd_port: ports[0],
        etcd_peer_port: ports[1],
        api_port: ports[2],
        controller_manager_port: ports[3],
        scheduler_port: ports[4],
        operator_port: ports[5],
        standby_port: ports[6],
    };
    // Saved before the first process starts, so that `down` always knows that there is a cluster.
    state.save(paths)?;
    let dir = paths.cluster();
    let pki = dir.join("pki");
    let tokens = pki::write(&pki, nodes.real())?;
    let ca = pki.join("ca.crt");
    let loopback = SocketAddrV4::new(Ipv4Addr::LOCALHOST, state.api_port);
    pki::kubeconfig(&paths.kubeconfig(), loopback, &ca, &tokens.admin)?;
    for (node, token) in &tokens.nodes {
        let server = SocketAddrV4::new(network::CONTROL_PLANE, state.api_port);
        pki::kubeconfig(&dir.join(format!("{}.kubeconfig", node.name())), server, &ca, token)?;
    }
    fs::write(dir.join("audit.yaml"), audit_policy())?;
    if nodes.is_real() {
        network::start(paths, &state)?;
    }

    spawn(paths, &state, ETCD, &etcd(&state, &dir))?;
    spawn(paths, &state, "kube-apiserver", &apiserver(&state, &dir, paths))?;
    wait_ready(paths)?;
    spawn(paths, &state, "kube-controller-manager", &controller_manager(&state, &pki, paths))?;
    spawn(paths, &state, "kube-scheduler", &scheduler(&state, paths))?;
    step.done();
    Ok(state)
}

/// Copies this program, because cargo may replace or remove the original while the cluster is running.
fn copy_self(paths: &Paths) -> Result<PathBuf> {
    let copy = paths.cluster().join("program");
    fs::create_dir_all(paths.cluster())?;
    fs::copy("/proc/self/exe", &copy).context("copying this program")?;
    Ok(copy)
}

/// Stops all components and their network.
pub fn stop(paths: &Paths) -> Result<()> {
    let records = records(paths);
    for name in NAMES.into_iter().rev() {
        // etcd's data is deleted anyway, and the API server would drain connections for a minute.
        let grace = if name == "kube-apiserver" { Duration::ZERO } else { GRACE };
        records.stop(name, grace)?;
    }
    network::stop(paths)
}

/// Returns whether all components and their network are running.
pub fn is_running(paths: &Paths, state: &State) -> bool {
    let records = records(paths);
    NAMES.iter().all(|name| records.alive(name).is_some()) && (!state.nodes.is_real() || network::is_running(paths))
}

fn spawn(paths: &Paths, state: &State, name: &str, args: &[String]) -> Result<()> {
    let program = if name == ETCD { paths.tool(name) } else { state.nodes.kubernetes().folder(paths).join(name) };
    let mut command = if state.nodes.is_real() {
        // Clusters with real nodes are small. Others are those of the benchmark too, with thousands of nodes.
        let mut command = network::inside(paths, state, &program)?;
        collect_seldom(&mut command);
        command
    } else {
        Command::new(program)
    };
    records(paths).spawn(name, command.args(args), &paths.log(name))
}

fn wait_ready(paths: &Paths) -> Result<()> {
    let records = records(paths);
    poll("the API server's readiness", Duration::from_mins(3), || {
        for name in [ETCD, "kube-apiserver"] {
            if records.alive(name).is_none() {
                anyhow::bail!("{name} ended; the end of its log:\n{}", tail(&paths.log(name), 3_000));
            }
        }
        Ok(kubectl(paths, &["get", "--raw=/readyz"]).map_err(|error| error.to_string()))
    })?;
    Ok(())
}

fn etcd(state: &State, dir: &Path) -> Vec<String> {
    let client = format!("http://127.0.0.1:{}", state.etcd_port);
    let peer = format!("http://127.0.0.1:{}", state.etcd_peer_port);
    vec![
        format!("--data-dir={}", dir.join("etcd").display()),
        "--name=default".into(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // The data does not have to survive a crash of the machine.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ]
}

fn apiserver(state: &State, dir: &Path, paths: &Paths) -> Vec<String> {
    let pki = dir.join("pki");
    let file = |name: &str| pki.join(name).display().to_string();
    let bind = if state.nodes.is_real() {
        // The namespace has no network but the cluster's.
        vec!["--bind-address=0.0.0.0".into(), format!("--advertise-address={}", network::CONTROL_PLANE)]
    } else {
        vec!["--bind-address=127.0.0.1".into()]
    };
    let args = vec![
        format!("--etcd-servers=http://127.0.0.1:{}", state.etcd_port),
        format!("--secure-port={}", state.api_port),
        format!("--tls-cert-file={}", file("apiserver.crt")),
        format!("--tls-private-key-file={}", file("apiserver.key")),
        format!("--token-auth-file={}", file("tokens.csv")),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        "--allow-privileged=true".into(),
        format!("--service-cluster-ip-range={}", network::SERVICES),
        // There is no service proxy, which would read the service's endpoints.
        "--endpoint-reconciler-type=none".into(),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={}", file("service-account.pub")),
        format!("--service-account-signing-key-file={}", file("service-account.key")),
        "--kubelet-preferred-address-types=InternalIP".into(),
        format!("--kubelet-certificate-authority={}", file("ca.crt")),
        format!("--kubelet-client-certificate={}", file("kubelet-client.crt")),
        format!("--kubelet-client-key={}", file("kubelet-client.key")),
        format!("--audit-policy-file={}", dir.join("audit.yaml").display()),
        format!("--audit-log-path={}", paths.logs().join("audit.log").display()),
        // In MB. Rotation would invalidate the marks of tests.
        "--audit-log-maxsize=100000".into(),
    ];
    [bind, args].concat()
}

/// Returns the audit policy: metadata of all writes, which is enough to see that a settled cluster is quiet, and of the reads
/// of operator, probe and the commands that are measured.
fn audit_policy() -> String {
    format!(
        "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ['{OPERATOR}', '{PROBE}', '{READER}']
- level: None
  verbs: [get, list, watch]
- level: None
  resources:
  - group: coordination.k8s.io
- level: Metadata
"
    )
}

fn controller_manager(state: &State, pki: &Path, paths: &Paths) -> Vec<String> {
    let mut args = client_args(state.controller_manager_port, paths);
    args.extend([
        format!("--service-account-private-key-file={}", pki.join("service-account.key").display()),
        format!("--root-ca-file={}", pki.join("ca.crt").display()),
        // Longer than any test: on a busy machine a late lease does not mean a dead node.
        "--node-monitor-grace-period=10m".into(),
    ]);
    args
}

fn scheduler(state: &State, paths: &Paths) -> Vec<String> {
    client_args(state.scheduler_port, paths)
}

/// Returns the arguments of components that are clients of the API server.
fn client_args(port: u16, paths: &Paths) -> Vec<String> {
    let kubeconfig = paths.kubeconfig().display().to_string();
    vec![
        format!("--kubeconfig={kubeconfig}"),
        format!("--authentication-kubeconfig={kubeconfig}"),
        format!("--authorization-kubeconfig={kubeconfig}"),
        "--bind-address=127.0.0.1".into(),
        format!("--secure-port={port}"),
        "--leader-elect=false".into(),
        // With the default limits thousands of pods would take minutes.
        "--kube-api-qps=1000".into(),
        "--kube-api-burst=2000".into(),
    ]
}

/// Returns free ports. All are held at the same time, so that they differ.
fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut listeners = Vec::with_capacity(N);
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        listeners.push(listener);
    }
    Ok(ports)
}
