//! The real node, seen from outside: its namespaces, containerd, kubelet, and what must go when it ends.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use standin_node::driver::proc_devices;

use crate::{
    config::{self, Names},
    namespace::ready_file,
    paths::Paths,
    process::{output, poll, tail},
    progress::Step,
    state::{NODE_NAME, State, records},
};

const INIT: &str = "node-init";
const CONTAINERD: &str = "containerd";
const KUBELET: &str = "kubelet";
const CGROUPS: &str = "/sys/fs/cgroup";

/// Starts the node up to its container runtime, so that images can be imported.
pub(crate) fn start_runtime(paths: &Paths, state: &State) -> Result<()> {
    let step = Step::start("starting the node's container runtime");
    boot(paths, state)?;
    step.done();
    Ok(())
}

fn boot(paths: &Paths, state: &State) -> Result<()> {
    if paths.base.as_os_str().as_encoded_bytes().iter().any(|byte| b":,\\".contains(byte)) {
        bail!("the checkout's path holds ':', ',' or '\\', which overlay mounts cannot take: move it");
    }
    let node = paths.node();
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
    make_cgroups(paths)?;
    config::write_containerd(paths)?;
    match fs::remove_file(ready_file(paths)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let id = output(Command::new(&state.xtask).arg("node-start"))?;
    let records = records(paths);
    records.record(INIT, id.trim().parse()?).with_context(|| log_of(paths, INIT))?;
    poll("the node's root", Duration::from_secs(20), || {
        if records.alive(INIT).is_none() {
            bail!(log_of(paths, INIT));
        }
        Ok(if ready_file(paths).exists() { Ok(()) } else { Err("being built".into()) })
    })?;
    start_containerd(paths, state)
}

/// Starts containerd and waits until it answers.
pub(crate) fn start_containerd(paths: &Paths, state: &State) -> Result<()> {
    daemon(paths, state, CONTAINERD, &["--config=/etc/containerd/config.toml".into()])?;
    poll("containerd's answer", Duration::from_secs(30), || {
        if records(paths).alive(CONTAINERD).is_none() {
            bail!(log_of(paths, CONTAINERD));
        }
        Ok(exec(paths, state, &["ctr", "version"]).map(|_| ()).map_err(|error| error.to_string()))
    })
}

/// Starts kubelet; with `wait` until its node is Ready.
pub(crate) fn start_kubelet(paths: &Paths, state: &State) -> Result<()> {
    let args = config::write_kubelet(paths, state)?;
    daemon(paths, state, KUBELET, &args)
}

/// Gives the node its address and waits until it is Ready.
pub(crate) fn wait_ready(paths: &Paths) -> Result<()> {
    let step = Step::start(format!("waiting for node {NODE_NAME}"));
    poll("the node's readiness", Duration::from_secs(90), || {
        step.tick("");
        if records(paths).alive(KUBELET).is_none() {
            bail!(log_of(paths, KUBELET));
        }
        Ok(initialize(paths).and_then(|()| readiness(paths)).map_err(|error| error.to_string()))
    })?;
    step.done();
    Ok(())
}

/// What a cloud's controller does for a new node: its address, and the taint off that waits for it.
fn initialize(paths: &Paths) -> Result<()> {
    let taint = "node.cloudprovider.kubernetes.io/uninitialized";
    let taints = kubectl(paths, &["get", "node", NODE_NAME, "-o", "jsonpath={.spec.taints[*].key}"])?;
    if !taints.split_whitespace().any(|key| key == taint) {
        return Ok(());
    }
    let addresses = serde_json::json!({"status": {"addresses": [
        {"type": "InternalIP", "address": "127.0.0.1"},
        {"type": "Hostname", "address": NODE_NAME},
    ]}});
    kubectl(
        paths,
        &["patch", "node", NODE_NAME, "--subresource=status", "--type=merge", "-p", &addresses.to_string()],
    )?;
    kubectl(paths, &["taint", "node", NODE_NAME, &format!("{taint}-")])?;
    Ok(())
}

fn readiness(paths: &Paths) -> Result<()> {
    let condition =
        "jsonpath={.status.conditions[?(@.type==\"Ready\")].status} {.status.conditions[?(@.type==\"Ready\")].message}";
    let ready = kubectl(paths, &["get", "node", NODE_NAME, "-o", condition])?;
    if !ready.starts_with("True") {
        bail!("Ready={ready}");
    }
    Ok(())
}

fn kubectl(paths: &Paths, args: &[&str]) -> Result<String> {
    output(Command::new(paths.tool("kubectl")).arg("--kubeconfig").arg(paths.kubeconfig()).args(args))
}

/// Starts a program in the node that goes on after us.
fn daemon(paths: &Paths, state: &State, name: &str, args: &[String]) -> Result<()> {
    let mut command = entering(paths, state)?;
    command.arg("--log").arg(paths.log(name)).arg("--").arg(paths.tool(name)).args(args);
    let id = output(&mut command)?;
    records(paths).record(name, id.trim().parse()?).with_context(|| log_of(paths, name))
}

/// Runs a command in the node and returns what it printed.
pub(crate) fn exec(paths: &Paths, state: &State, command: &[&str]) -> Result<String> {
    output(entering(paths, state)?.arg("--").args(command))
}

fn entering(paths: &Paths, state: &State) -> Result<Command> {
    let init = records(paths).alive(INIT).context("the node does not run")?;
    let mut command = Command::new(&state.xtask);
    command.args(["node-exec", "--node", &init.to_string()]);
    Ok(command)
}

/// Whether containerd and kubelet run.
pub(crate) fn is_running(paths: &Paths) -> bool {
    let records = records(paths);
    [INIT, CONTAINERD, KUBELET].iter().all(|name| records.alive(name).is_some())
}

/// Ends and starts kubelet; its pods go on.
pub(crate) fn restart_kubelet(paths: &Paths, state: &State) -> Result<()> {
    records(paths).stop(KUBELET, Duration::from_secs(5))?;
    start_kubelet(paths, state)
}

/// Ends and starts containerd; its containers go on.
pub(crate) fn restart_containerd(paths: &Paths, state: &State) -> Result<()> {
    records(paths).stop(CONTAINERD, Duration::from_secs(5))?;
    start_containerd(paths, state)
}

/// Starts containerd if it has ended, as an init system does; says whether it had.
pub(crate) fn revive_containerd(paths: &Paths, state: &State) -> Result<bool> {
    if records(paths).alive(CONTAINERD).is_some() {
        return Ok(false);
    }
    start_containerd(paths, state)?;
    Ok(true)
}

/// Cuts the power and turns it on again: every process and mount of the node is gone, its disk stays; what only memory
/// held (/run, /dev, the loaded driver) is gone too.
pub(crate) fn reboot(paths: &Paths, state: &State) -> Result<()> {
    stop(paths)?;
    remove_tree(&paths.standin().join("module/nvidia"))?;
    boot(paths, state)?;
    start_kubelet(paths, state)
}

/// Ends every process of the node and takes away what it left outside the checkout. Its disk stays.
pub(crate) fn stop(paths: &Paths) -> Result<()> {
    let records = records(paths);
    // The kernel ends all the others with the first process, so they need no goodbye.
    for name in [INIT, KUBELET, CONTAINERD] {
        records.stop(name, Duration::ZERO)?;
    }
    remove_cgroups(paths)?;
    let bridge = Names::new(paths).bridge;
    if Path::new("/sys/class/net").join(&bridge).exists() {
        output(Command::new("ip").args(["link", "delete", &bridge]))?;
    }
    Ok(())
}

/// Removes the node's disk.
pub(crate) fn remove_disk(paths: &Paths) -> Result<()> {
    remove_tree(&paths.node())
}

fn remove_tree(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// A control group of our own above kubelet's, so that all that it makes can be found and removed.
fn make_cgroups(paths: &Paths) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(Names::new(paths).cgroup);
        fs::create_dir_all(&group).with_context(|| format!("making {}", group.display()))?;
        // Version 1 starts with no processor at all, and lets nothing in until it is given some.
        for file in ["cpuset.mems", "cpuset.cpus"] {
            let (from, to) = (hierarchy.join(file), group.join(file));
            if from.exists() && to.exists() {
                fs::write(&to, fs::read_to_string(&from)?.trim())
                    .with_context(|| format!("writing {}", to.display()))?;
            }
        }
    }
    Ok(())
}

fn remove_cgroups(paths: &Paths) -> Result<()> {
    for hierarchy in hierarchies() {
        let group = hierarchy.join(Names::new(paths).cgroup);
        if group.exists() {
            poll("the end of the node's control groups", Duration::from_secs(20), || {
                Ok(remove_cgroup(&group).map_err(|error| error.to_string()))
            })?;
        }
    }
    Ok(())
}

/// Bottom up, for a group that holds another cannot be removed. What still runs in it is ours, and ended.
fn remove_cgroup(group: &Path) -> std::io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    for id in fs::read_to_string(group.join("cgroup.procs"))?.lines().filter_map(|line| line.parse().ok()) {
        let _ = kill(Pid::from_raw(id), Signal::SIGKILL);
    }
    fs::remove_dir(group)
}

/// The mounted control group hierarchies: one with version 2, one for each controller with version 1.
fn hierarchies() -> Vec<PathBuf> {
    let top = PathBuf::from(CGROUPS);
    if top.join("cgroup.procs").exists() {
        return vec![top];
    }
    let folders = fs::read_dir(&top).into_iter().flatten().flatten().map(|entry| entry.path());
    // Links such as cpu,cpuacct name what is there under another name already.
    folders.filter(|path| !path.is_symlink() && path.join("cgroup.procs").exists()).collect()
}

fn log_of(paths: &Paths, name: &str) -> String {
    format!("{name} ended; the end of its log:\n{}", tail(&paths.log(name), 3_000))
}
