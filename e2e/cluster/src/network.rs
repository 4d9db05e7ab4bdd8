//! The cluster's network: a network namespace with a bridge to which every node is attached. The control plane runs in this
//! namespace. The machine's own network has no address, route or device of it; the only way in is the API server's port on
//! loopback, which the process that holds the namespace forwards. It also forwards the service `kubernetes`: of all that is outside their
//! node, pods reach only this.
//!
//! When the last process in the namespace ends, the kernel removes it, including the bridge and the nodes' links.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener as HostListener},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use harness::{files::tail, node_id::NodeId, paths::Paths, process::output, records::records, wait::poll};
use nix::sched::{CloneFlags, setns, unshare};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};

use super::state::State;

const HOLDER: &str = "network";
const BRIDGE: &str = "nodes";
/// The name of the link inside a node.
const LINK: &str = "eth0";
/// The length of the network's prefix.
const PREFIX: u8 = 24;
/// The address of the control plane, as nodes reach it.
pub const CONTROL_PLANE: Ipv4Addr = Ipv4Addr::new(198, 18, 1, 1);
/// The network of services.
pub const SERVICES: &str = "198.18.0.0/24";
/// The address of the service `kubernetes`, by which pods reach the API server. There is no service proxy: the address is the control plane's.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// Its port.
const API_SERVICE_PORT: u16 = 443;

fn ready_file(paths: &Paths) -> PathBuf {
    paths.cluster().join("network-ready")
}

/// Creates the namespace.
pub fn start(paths: &Paths, state: &State) -> Result<()> {
    let mut command = Command::new(&state.program);
    command.args(["network-hold", "--port", &state.api_port.to_string()]);
    records(paths).spawn(HOLDER, &mut command, &paths.log(HOLDER))?;
    poll("the cluster's network", Duration::from_mins(3), || {
        if records(paths).alive(HOLDER).is_none() {
            bail!("the process that holds the network ended; the end of its log:\n{}", tail(&paths.log(HOLDER), 3_000));
        }
        Ok(if ready_file(paths).exists() { Ok(()) } else { Err("not ready".into()) })
    })
}

/// Ends the process that holds the namespace.
pub fn stop(paths: &Paths) -> Result<()> {
    records(paths).stop(HOLDER, Duration::ZERO)
}

/// Returns whether the process that holds the namespace is running.
pub fn is_running(paths: &Paths) -> bool {
    records(paths).alive(HOLDER).is_some()
}

/// Returns the process that holds the namespace.
pub fn holder(paths: &Paths) -> Result<u32> {
    records(paths).alive(HOLDER).context("the cluster's network is not running")
}

/// Returns a command that runs a program in the namespace, under its own process id.
pub fn inside(paths: &Paths, state: &State, program: &Path) -> Result<Command> {
    let mut command = Command::new(&state.program);
    command.args(["network-exec", "--holder", &holder(paths)?.to_string(), "--"]).arg(program);
    Ok(command)
}

/// `network-hold`: creates the namespace, and forwards connections from a port on the machine's loopback to the same port in
/// the namespace.
pub fn hold(paths: &Paths, port: u16) -> Result<()> {
    // A socket stays in the namespace in which it was created.
    let outside = HostListener::bind((Ipv4Addr::LOCALHOST, port)).context("listening for the API server's clients")?;
    outside.set_nonblocking(true)?;
    unshare(CloneFlags::CLONE_NEWNET).context("creating the cluster's network")?;
    let address = format!("{CONTROL_PLANE}/{PREFIX}");
    let service = format!("{API_SERVICE}/32");
    for args in [
        &["link", "set", "lo", "up"][..],
        &["link", "add", BRIDGE, "type", "bridge"],
        &["address", "add", &address, "dev", BRIDGE],
        &["address", "add", &service, "dev", BRIDGE],
        &["link", "set", BRIDGE, "up"],
    ] {
        ip(args)?;
    }
    let inside = HostListener::bind((API_SERVICE, API_SERVICE_PORT)).context("listening for the API server's pods")?;
    inside.set_nonblocking(true)?;
    fs::write(ready_file(paths), "")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async { tokio::try_join!(forward(outside, port), forward(inside, port)) })?;
    Ok(())
}

/// Forwards all connections of a listener to a port on the namespace's loopback.
async fn forward(from: HostListener, port: u16) -> Result<()> {
    let from = TcpListener::from_std(from)?;
    loop {
        let Ok((mut client, _)) = from.accept().await else {
            // The client has disconnected, or there are too many connections.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        tokio::spawn(async move {
            // As without a proxy, any failure closes the connection.
            if let Ok(mut server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await {
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let _ = copy_bidirectional(&mut client, &mut server).await;
            }
        });
    }
}

/// `network-exec`: replaces this process by a program in the namespace that the process `holder` holds.
pub fn exec(holder: u32, command: &[String]) -> Result<()> {
    let (program, args) = command.split_first().context("no command given")?;
    enter(holder)?;
    Err(Command::new(program).args(args).exec()).with_context(|| format!("starting {program}"))
}

/// Enters the network namespace of a process.
pub fn enter(process: u32) -> Result<()> {
    let namespace = fs::File::open(format!("/proc/{process}/ns/net")).context("the process has ended")?;
    setns(namespace, CloneFlags::CLONE_NEWNET).context("entering the network")
}

/// Attaches a node to the bridge by a link whose end on the bridge has the node's name. The caller must be in the cluster's
/// network, and its children in the node's PID namespace, whose first process is in the node's network.
pub fn attach(node: NodeId) -> Result<()> {
    let port = node.name();
    // After a reboot the old link may still exist: the kernel removes it with its namespace, but not at once.
    let _ = output(Command::new("ip").args(["link", "delete", &port]).stderr(Stdio::null()));
    ip(&["link", "add", &port, "type", "veth", "peer", "name", LINK, "netns", "1"])?;
    ip(&["link", "set", &port, "master", BRIDGE, "up"])?;
    ip(&["route", "replace", &node.pods(), "via", &node.address().to_string()])
}

/// Configures the network in a node's own namespace, once its link exists.
pub fn bring_up(node: NodeId) -> Result<()> {
    poll("the node's link", Duration::from_mins(3), || {
        Ok(output(Command::new("ip").args(["link", "show", LINK])).map(drop).map_err(|error| error.to_string()))
    })?;
    let address = format!("{}/{PREFIX}", node.address());
    ip(&["link", "set", "lo", "up"])?;
    ip(&["address", "add", &address, "dev", LINK])?;
    ip(&["link", "set", LINK, "up"])?;
    ip(&["route", "add", SERVICES, "via", &CONTROL_PLANE.to_string()])
}

fn ip(args: &[&str]) -> Result<()> {
    output(Command::new("ip").args(args)).map(drop)
}
