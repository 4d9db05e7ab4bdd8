//! The namespaces of a node: for processes, network, mounts and control groups.
//!
//! These are hidden commands of `xtask`. `node-start` creates the namespaces and leaves `node-init` in them as the first
//! process; when that process is killed, the kernel ends all processes of the node, and all mounts vanish with the last one.
//! `node-exec` runs a command in the node.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    thread::{self, sleep},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use harness::{
    errln,
    files::{append, create},
    mounts,
    node_id::NodeId,
    outln,
    paths::Paths,
    process::{collect_seldom, spawn_detached},
    scratch::exit_code,
};
use nix::{
    sched::{CloneFlags, setns, unshare},
    sys::wait::wait,
    unistd::{Pid, chdir},
};
use standin_node::FOLDER;

use super::{cgroups, root, runtime::Runtime};
use crate::{
    network,
    standin::{module_references, unanswered},
};

/// Returns the file that `node-init` writes once the node's root is complete.
pub fn ready_file(paths: &Paths, node: NodeId) -> PathBuf {
    paths.cluster().join(format!("{}.ready", node.name()))
}

/// `node-start`: leaves `node-init` running, attached to the network that the process `network` holds, and prints its process
/// id.
pub fn start(paths: &Paths, node: NodeId, network: u32) -> Result<()> {
    cgroups::join(paths, node)?;
    let own =
        CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWCGROUP;
    unshare(own).context("creating the node's namespaces")?;
    cgroups::join_system(paths, node)?;
    // From here on mounts are not visible outside.
    mounts::make_private()?;
    let log = create(&paths.log(&format!("node-init.{}", node.name())))?;
    let mut init = Command::new(std::env::current_exe()?);
    // The programs of the container runtime inherit it.
    collect_seldom(&mut init).args(["node-init", "--number", &node.number().to_string()]);
    let id = spawn_detached(&mut init, log)?;
    network::enter(network)?;
    network::attach(node)?;
    outln!("{id}");
    Ok(())
}

/// `node-init`: builds the root, and is the node's init system until it is killed. It runs the container runtime, starts its programs again
/// whenever they end, and reaps orphaned processes.
pub fn init(paths: &Paths, node: NodeId) -> Result<()> {
    if std::process::id() != 1 {
        bail!("node-init can only be started by node-start");
    }
    network::bring_up(node)?;
    root::build(paths, node).context("building the node's root")?;
    thread::spawn(|| module_references::keep_count(Path::new(FOLDER)));
    thread::spawn(|| {
        if let Err(error) = unanswered::record(Path::new(FOLDER)) {
            errln!("unanswered calls of the stand-in NVML are not recorded: {error}");
        }
    });
    let services = Runtime::of(node).services();
    let mut running = services.iter().map(|service| service.start(paths, node)).collect::<Result<Vec<_>>>()?;
    fs::write(ready_file(paths, node), "")?;
    loop {
        let ended = wait()?.pid().map(Pid::as_raw);
        let is_ended = |id: &&mut u32| i32::try_from(**id).ok() == ended;
        if let Some((service, id)) = services.iter().zip(&mut running).find(|(_, id)| is_ended(id)) {
            // If it cannot start, retrying must not keep the machine busy.
            sleep(Duration::from_millis(200));
            *id = service.start(paths, node)?;
        }
    }
}

/// `node-exec`: runs a command in the namespaces of a node, which the process `holder` holds. With `log`, leaves it running
/// with its output in that file and prints its process id; otherwise waits for it and returns its exit code.
pub fn exec(paths: &Paths, node: NodeId, holder: u32, log: Option<&Path>, command: &[String]) -> Result<ExitCode> {
    let (program, args) = command.split_first().context("no command given")?;
    let log = log.map(append).transpose()?;
    cgroups::join_system(paths, node)?;
    let namespaces = ["cgroup", "net", "pid", "mnt"].map(|kind| fs::File::open(format!("/proc/{holder}/ns/{kind}")));
    let kinds =
        [CloneFlags::CLONE_NEWCGROUP, CloneFlags::CLONE_NEWNET, CloneFlags::CLONE_NEWPID, CloneFlags::CLONE_NEWNS];
    for (namespace, kind) in namespaces.into_iter().zip(kinds) {
        setns(namespace.context("the node is not running")?, kind).context("entering the node")?;
    }
    chdir("/")?;
    let mut child = Command::new(program);
    child.args(args).env("PATH", Runtime::of(node).search_path(paths));
    if let Some(log) = log {
        let id = spawn_detached(collect_seldom(&mut child), log).context("in the node")?;
        outln!("{id}");
        return Ok(ExitCode::SUCCESS);
    }
    let status = child.status().with_context(|| format!("starting {program} in the node"))?;
    Ok(exit_code(status))
}
