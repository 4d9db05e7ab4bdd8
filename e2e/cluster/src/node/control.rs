//! Controlling a real node from outside: boot, kubelet, containerd, commands in the node, and its end.

use std::{collections::BTreeSet, fs, process::Command, thread, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use harness::{
    files::{ignore_missing, remove_tree, tail},
    images,
    node_id::NodeId,
    paths::Paths,
    process::output,
    progress::Step,
    records::records,
    wait::poll,
};
use standin_node::driver::devices;

use super::{
    cgroups, kubelet,
    namespaces::ready_file,
    runtime::{self, Runtime},
};
use crate::{clients::kubectl, network, state::State};

const INIT: &str = "node-init";
const KUBELET: &str = "kubelet";

/// Returns the name of a node's program in records and logs.
fn record(program: &str, node: NodeId) -> String {
    format!("{program}.{}", node.name())
}

/// Starts a node up to its container runtime, so that images can be imported.
pub fn boot(paths: &Paths, state: &State, id: NodeId) -> Result<()> {
    if paths.base.as_os_str().as_encoded_bytes().iter().any(|byte| b":,\\".contains(byte)) {
        bail!("the checkout's path contains ':', ',' or '\\', which overlay mounts do not support: move the checkout");
    }
    let node = paths.node(id);
    for dir in ["root", "upper", "work", "disk", "standin/pci", "standin/module", "standin/lock"] {
        fs::create_dir_all(node.join(dir))?;
    }
    // The kernel's search path of firmware, which NVIDIA's driver container mounts and writes.
    let firmware = node.join("standin/module/firmware_class/parameters");
    fs::create_dir_all(&firmware)?;
    fs::write(firmware.join("path"), "\n")?;
    // Mounted over /proc/devices, which lists NVIDIA's devices only while a driver is loaded.
    let devices = fs::read_to_string("/proc/devices").context("/proc/devices")?;
    let devices = devices::listing(&devices, false);
    fs::write(node.join("standin").join(devices::FILE), devices)?;
    cgroups::create(paths, id)?;
    Runtime::of(id).configure(paths, id)?;
    fs::remove_file(ready_file(paths, id)).or_else(ignore_missing)?;
    let mut start = Command::new(&state.program);
    start.args(["node-start", "--number", &id.number().to_string(), "--network"]);
    let process = output(start.arg(network::holder(paths)?.to_string()))?;
    let (records, init) = (records(paths), record(INIT, id));
    records.record(&init, process.trim().parse()?).with_context(|| log_tail(paths, &init))?;
    poll("the node's root", Duration::from_mins(3), || {
        if records.alive(&init).is_none() {
            bail!(log_tail(paths, &init));
        }
        Ok(if ready_file(paths, id).exists() { Ok(()) } else { Err("not ready".into()) })
    })?;
    wait_for_runtime(paths, state, id)
}

/// Waits until containerd answers, and the node's runtime listens.
fn wait_for_runtime(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let socket = Runtime::of(node).socket();
    let answer = poll("the container runtime", Duration::from_mins(3), || {
        let answers = exec(paths, state, node, &["ctr", "version"])
            .and_then(|_| exec(paths, state, node, &["test", "-S", socket]));
        Ok(answers.map(drop).map_err(|error| error.to_string()))
    });
    answer.with_context(|| log_tail(paths, &runtime::log(node)))
}

pub fn start_kubelet(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let args = kubelet::configure(paths, node)?;
    daemon(paths, state, node, KUBELET, &args)
}

/// Waits until a node is Ready.
pub fn wait_ready(paths: &Paths, node: NodeId) -> Result<()> {
    poll("the node's readiness", Duration::from_mins(3), || {
        check_running(paths, node, KUBELET)?;
        Ok(check_ready(paths, node).map_err(|error| error.to_string()))
    })
}

/// Fails if a program of a node has ended, with the end of its log.
fn check_running(paths: &Paths, node: NodeId, program: &str) -> Result<()> {
    let name = record(program, node);
    if records(paths).alive(&name).is_none() {
        bail!(log_tail(paths, &name));
    }
    Ok(())
}

fn check_ready(paths: &Paths, node: NodeId) -> Result<()> {
    let condition =
        "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} {.status.conditions[?(@.type==\"Ready\")].message}";
    let ready = kubectl(paths, &["get", "node", &node.name(), "-o", condition])?;
    if !ready.starts_with("True") {
        bail!("Ready={ready}");
    }
    Ok(())
}

/// Starts a program in a node that keeps running after this command.
fn daemon(paths: &Paths, state: &State, node: NodeId, program: &str, args: &[String]) -> Result<()> {
    let name = record(program, node);
    let mut command = entering(paths, state, node)?;
    command.arg("--log").arg(paths.log(&name)).arg("--").arg(paths.tool(program)).args(args);
    let id = output(&mut command)?;
    records(paths).record(&name, id.trim().parse()?).with_context(|| log_tail(paths, &name))
}

/// Runs a command in a node and returns its standard output.
pub fn exec(paths: &Paths, state: &State, node: NodeId, command: &[&str]) -> Result<String> {
    output(entering(paths, state, node)?.arg("--").args(command))
}

fn entering(paths: &Paths, state: &State, node: NodeId) -> Result<Command> {
    let init = records(paths).alive(&record(INIT, node)).context("the node is not running")?;
    let mut command = Command::new(&state.program);
    command.args(["node-exec", "--number", &node.number().to_string(), "--process", &init.to_string()]);
    Ok(command)
}

/// Returns whether a node and its kubelet are running.
pub fn is_running(paths: &Paths, node: NodeId) -> bool {
    let records = records(paths);
    [INIT, KUBELET].iter().all(|program| records.alive(&record(program, node)).is_some())
}

/// Stops kubelet. Its pods keep running.
pub fn stop_kubelet(paths: &Paths, node: NodeId) -> Result<()> {
    records(paths).stop(&record(KUBELET, node), Duration::from_secs(5))
}

/// Restarts kubelet. Its pods keep running.
pub fn restart_kubelet(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    stop_kubelet(paths, node)?;
    start_kubelet_again(paths, state, node)
}

/// Starts kubelet beside a container runtime that has just started, as often as necessary: containerd answers before its CRI service is
/// initialized, and kubelet then ends. On a real host systemd starts it again.
fn start_kubelet_again(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    start_kubelet(paths, state, node)?;
    let name = record(KUBELET, node);
    let serves = poll("kubelet's port", Duration::from_mins(3), || {
        if records(paths).alive(&name).is_none() {
            start_kubelet(paths, state, node)?;
        }
        let sockets = exec(paths, state, node, &["cat", "/proc/net/tcp"])?;
        Ok(if is_listening(&sockets, kubelet::PORT) { Ok(()) } else { Err("it does not listen yet".into()) })
    });
    serves.with_context(|| log_tail(paths, &name))
}

/// Returns whether a process listens on a port, as listed in `/proc/net/tcp`. Connections to a process that has ended stay in the list for
/// a minute.
fn is_listening(sockets: &str, port: u16) -> bool {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    sockets.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(LISTEN)
    })
}

/// Ends containerd, and waits until the node has started it again. Its containers keep running.
pub fn restart_containerd(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let before = containerd_starts(paths, state, node)?;
    let last = before.last().context("containerd has not been started yet")?;
    exec(paths, state, node, &["kill", last])?;
    poll("containerd's start", Duration::from_mins(3), || {
        let now = containerd_starts(paths, state, node)?;
        Ok(if now.len() > before.len() { Ok(()) } else { Err("not restarted yet".into()) })
    })?;
    wait_for_runtime(paths, state, node)
}

/// Returns the process ids, in the node, of all starts of containerd since the node's boot. The last one is running.
pub fn containerd_starts(paths: &Paths, state: &State, node: NodeId) -> Result<Vec<String>> {
    let starts = exec(paths, state, node, &["cat", runtime::STARTS])?;
    Ok(starts.lines().map(str::to_owned).collect())
}

/// Switches a node off and on. Its processes and mounts end, and so does what is only in memory, such as `/run`, `/dev` and
/// the loaded driver; its disk stays.
pub fn reboot(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    stop(paths, node)?;
    remove_tree(&paths.standin(node).join("module/nvidia"))?;
    boot(paths, state, node)?;
    start_kubelet_again(paths, state, node)
}

/// Ends all processes of a node and removes what it has outside the checkout. Its disk stays.
pub fn stop(paths: &Paths, node: NodeId) -> Result<()> {
    // With the first process the kernel ends all others.
    for program in [INIT, KUBELET] {
        records(paths).stop(&record(program, node), Duration::ZERO)?;
    }
    cgroups::remove(paths, node)
}

/// Removes the disks of all nodes.
pub fn remove_disks(paths: &Paths) -> Result<()> {
    remove_tree(&paths.nodes())
}

/// Returns the end of a program's log, for messages.
fn log_tail(paths: &Paths, name: &str) -> String {
    format!("the end of the log of {name}:\n{}", tail(&paths.log(name), 3_000))
}

/// Imports the images that each node does not have yet, and returns their names; without `all`, only those that every pod needs.
pub fn import(paths: &Paths, state: &State, all: bool) -> Result<BTreeSet<String>> {
    let step = Step::start("importing images into the nodes");
    let imported = thread::scope(|scope| {
        let nodes: Vec<_> =
            state.nodes.real().map(|node| scope.spawn(move || of_node(paths, state, node, all))).collect();
        while nodes.iter().any(|node| !node.is_finished()) {
            step.tick("");
            thread::sleep(Duration::from_millis(50));
        }
        let joined = nodes.into_iter().map(|node| node.join().map_err(|_| anyhow!("the import has panicked"))?);
        joined.collect::<Result<Vec<_>>>()
    })?;
    step.done();
    Ok(imported.into_iter().flatten().collect())
}

/// Imports the images that one node does not have yet, and returns their names.
fn of_node(paths: &Paths, state: &State, node: NodeId, all: bool) -> Result<Vec<String>> {
    let imported = paths.cluster().join(format!("{}.imported", node.name()));
    fs::create_dir_all(&imported)?;
    let mut missing = Vec::new();
    for image in images::list(all)? {
        let built = image.stamp_file(paths);
        let record = imported.join(built.file_name().unwrap_or_default());
        let stamp = fs::read_to_string(&built).with_context(|| format!("reading {}", built.display()))?;
        if !fs::read_to_string(&record).is_ok_and(|old| old == stamp) {
            missing.push((image, record, stamp));
        }
    }
    for (image, record, stamp) in &missing {
        let archive = image.archive(paths);
        let archive = archive.to_str().context("the checkout's path is not UTF-8")?;
        let import = ["ctr", "--namespace=k8s.io", "images", "import", "--local", archive];
        exec(paths, state, node, &import).with_context(|| node.name())?;
        fs::write(record, stamp)?;
    }
    Ok(missing.into_iter().map(|(image, ..)| image.name).collect())
}
