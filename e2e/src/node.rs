//! A real node, seen from outside: its namespaces, containerd, kubelet, and what must go when it ends.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, bail};
use standin_node::driver::proc_devices;

use crate::{
    cgroups, chart, containerd, kubelet, machines,
    namespace::ready_file,
    network,
    paths::Paths,
    process::{output, poll, tail},
    state::{NodeId, State, records},
};

const INIT: &str = "node-init";
const KUBELET: &str = "kubelet";

/// The name under which a program of a node is on record and logs.
fn record(program: &str, node: NodeId) -> String {
    format!("{program}.{}", node.name())
}

/// Starts a node up to its container runtime, so that images can be imported.
pub(crate) fn boot(paths: &Paths, state: &State, id: NodeId) -> Result<()> {
    if paths.base.as_os_str().as_encoded_bytes().iter().any(|byte| b":,\\".contains(byte)) {
        bail!("the checkout's path holds ':', ',' or '\\', which overlay mounts cannot take: move it");
    }
    let node = paths.node(id);
    for dir in ["root", "upper", "work", "disk", "standin/pci", "standin/module", "standin/lock"] {
        fs::create_dir_all(node.join(dir))?;
    }
    // NVIDIA's driver container is handed this file, with which the kernel is told where firmware lies.
    let firmware = node.join("standin/module/firmware_class/parameters");
    fs::create_dir_all(&firmware)?;
    fs::write(firmware.join("path"), "\n")?;
    // Mounted over /proc/devices, where nothing of NVIDIA's is listed before a driver is loaded.
    let devices = fs::read_to_string("/proc/devices").context("/proc/devices")?;
    let devices = proc_devices::listing(&devices, false);
    fs::write(node.join("standin").join(proc_devices::FILE), devices)?;
    cgroups::make(paths, id)?;
    machines::containerd(id).configure(paths, id)?;
    match fs::remove_file(ready_file(paths, id)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let mut start = Command::new(&state.xtask);
    start.args(["node-start", "--number", &id.number().to_string(), "--network"]);
    let process = output(start.arg(network::holder(paths)?.to_string()))?;
    let (records, init) = (records(paths), record(INIT, id));
    records.record(&init, process.trim().parse()?).with_context(|| log_of(paths, &init))?;
    poll("the node's root", Duration::from_secs(20), || {
        if records.alive(&init).is_none() {
            bail!(log_of(paths, &init));
        }
        Ok(if ready_file(paths, id).exists() { Ok(()) } else { Err("being built".into()) })
    })?;
    wait_for_containerd(paths, state, id)
}

/// Waits until containerd answers.
pub(crate) fn wait_for_containerd(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let answer = poll("containerd's answer", Duration::from_secs(30), || {
        Ok(exec(paths, state, node, &["ctr", "version"]).map(drop).map_err(|error| error.to_string()))
    });
    answer.with_context(|| log_of(paths, &containerd::log(node)))
}

/// Starts kubelet.
pub(crate) fn start_kubelet(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let args = kubelet::configure(paths, node)?;
    daemon(paths, state, node, KUBELET, &args)
}

/// Waits until a node is Ready.
pub(crate) fn wait_ready(paths: &Paths, node: NodeId) -> Result<()> {
    poll("the node's readiness", Duration::from_secs(90), || {
        check(paths, node, KUBELET)?;
        Ok(readiness(paths, node).map_err(|error| error.to_string()))
    })
}

/// Fails if a program of a node has ended, with its last words.
fn check(paths: &Paths, node: NodeId, program: &str) -> Result<()> {
    let name = record(program, node);
    if records(paths).alive(&name).is_none() {
        bail!(log_of(paths, &name));
    }
    Ok(())
}

fn readiness(paths: &Paths, node: NodeId) -> Result<()> {
    let condition =
        "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} {.status.conditions[?(@.type==\"Ready\")].message}";
    let ready = chart::kubectl(paths, &["get", "node", &node.name(), "-o", condition])?;
    if !ready.starts_with("True") {
        bail!("Ready={ready}");
    }
    Ok(())
}

/// Starts a program in a node that goes on after this command.
fn daemon(paths: &Paths, state: &State, node: NodeId, program: &str, args: &[String]) -> Result<()> {
    let name = record(program, node);
    let mut command = entering(paths, state, node)?;
    command.arg("--log").arg(paths.log(&name)).arg("--").arg(paths.tool(program)).args(args);
    let id = output(&mut command)?;
    records(paths).record(&name, id.trim().parse()?).with_context(|| log_of(paths, &name))
}

/// Runs a command in a node and returns what it printed.
pub(crate) fn exec(paths: &Paths, state: &State, node: NodeId, command: &[&str]) -> Result<String> {
    output(entering(paths, state, node)?.arg("--").args(command))
}

fn entering(paths: &Paths, state: &State, node: NodeId) -> Result<Command> {
    let init = records(paths).alive(&record(INIT, node)).context("the node does not run")?;
    let mut command = Command::new(&state.xtask);
    command.args(["node-exec", "--number", &node.number().to_string(), "--process", &init.to_string()]);
    Ok(command)
}

/// Whether a node and its kubelet run.
pub(crate) fn is_running(paths: &Paths, node: NodeId) -> bool {
    let records = records(paths);
    [INIT, KUBELET].iter().all(|program| records.alive(&record(program, node)).is_some())
}

/// Ends kubelet; its pods go on.
pub(crate) fn stop_kubelet(paths: &Paths, node: NodeId) -> Result<()> {
    records(paths).stop(&record(KUBELET, node), Duration::from_secs(5))
}

/// Ends and starts kubelet; its pods go on.
pub(crate) fn restart_kubelet(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    stop_kubelet(paths, node)?;
    start_kubelet(paths, state, node)
}

/// Ends containerd, which its node starts again; its containers go on.
pub(crate) fn restart_containerd(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let before = containerd_starts(paths, state, node)?;
    let last = before.last().context("containerd was never started")?;
    exec(paths, state, node, &["kill", last])?;
    poll("containerd's start", Duration::from_secs(30), || {
        let now = containerd_starts(paths, state, node)?;
        Ok(if now.len() > before.len() { Ok(()) } else { Err("it has not ended".into()) })
    })?;
    wait_for_containerd(paths, state, node)
}

/// The processes that containerd has been since its node was switched on, by their ids there. The last one runs.
pub(crate) fn containerd_starts(paths: &Paths, state: &State, node: NodeId) -> Result<Vec<String>> {
    let starts = exec(paths, state, node, &["cat", containerd::STARTS])?;
    Ok(starts.lines().map(str::to_owned).collect())
}

/// Cuts the power and turns it on again: every process and mount of the node is gone, its disk stays; what only memory
/// held (/run, /dev, the loaded driver) is gone too.
pub(crate) fn reboot(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    stop(paths, node)?;
    remove_tree(&paths.standin(node).join("module/nvidia"))?;
    boot(paths, state, node)?;
    start_kubelet(paths, state, node)
}

/// Ends every process of a node and takes away what it left outside the checkout. Its disk stays.
pub(crate) fn stop(paths: &Paths, node: NodeId) -> Result<()> {
    // The kernel ends all the others with the first process, so they need no goodbye.
    for program in [INIT, KUBELET] {
        records(paths).stop(&record(program, node), Duration::ZERO)?;
    }
    cgroups::remove(paths, node)
}

/// Removes all nodes' disks.
pub(crate) fn remove_disks(paths: &Paths) -> Result<()> {
    remove_tree(&paths.nodes())
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn log_of(paths: &Paths, name: &str) -> String {
    format!("the end of {name}'s log:\n{}", tail(&paths.log(name), 3_000))
}
