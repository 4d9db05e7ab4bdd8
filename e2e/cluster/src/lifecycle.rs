//! Starting and removing the whole cluster.

use std::{fs, thread, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use harness::{
    cargo::{self, Scope, build_workspace},
    files::ignore_missing,
    images,
    interrupts::begin_cleanup,
    node_id::{MAX_NODES, NodeId},
    outln, packages,
    paths::Paths,
    progress::{Step, heading},
    records::records,
    tools::{self, Kubernetes, Part},
};
use nix::unistd::Uid;

use super::{
    chart, clients, control_plane, kwok,
    node::{
        cgroups,
        control::{self, import},
        real_node::{HostDriver, RealNode},
        runtime::Runtime,
    },
    standin::{Gpu, Standin},
    state::{Nodes, Purpose, State},
};

/// The parts of a cluster that a command needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Control plane and nodes.
    Bare,
    /// In addition, the chart.
    Chart,
    /// In addition, the example policy.
    Policy,
}

/// Returns `count` real nodes if this user can run them; otherwise, and for a count of zero, the single kwok node.
pub fn choose_nodes(count: u8) -> Nodes {
    if count == 0 {
        Nodes::Kwok(Kubernetes::Newest)
    } else if Uid::effective().is_root() {
        Nodes::Real(count)
    } else {
        outln!(
            "! not root: containerd and kubelet cannot run, so the cluster gets one kwok node instead of real GPU nodes.\n\
             ! Containers do not run on it, so no policy becomes Ready. Run as root for real nodes."
        );
        Nodes::Kwok(Kubernetes::Newest)
    }
}

/// Builds what the cluster needs, and starts it up to `extent`. A running cluster is kept.
pub fn up(paths: &Paths, purpose: Purpose, extent: Extent, nodes: Nodes) -> Result<State> {
    if let Some(state) = running(paths) {
        outln!("the cluster is already running");
        if state.nodes.is_real() {
            build(paths, state.purpose, extent, state.nodes)?;
            chart::restart(paths, &import(paths, &state, extent > Extent::Bare)?)?;
        }
        return install(paths, state, extent);
    }
    // Leftovers would use the processors while the workspace is built.
    clear(paths)?;
    if nodes.is_real() {
        build(paths, purpose, extent, nodes)?;
    } else {
        build_tools(paths, purpose, nodes)?;
    }
    start(paths, purpose, extent, nodes)
}

/// Removes the parts of a cluster that a killed command or a restart of the machine has left, and its logs.
fn clear(paths: &Paths) -> Result<()> {
    down(paths)?;
    for paths in [paths, &Paths::simulated()] {
        fs::remove_dir_all(paths.logs()).or_else(ignore_missing)?;
    }
    Ok(())
}

/// Starts the cluster up to `extent`. What it needs must have been built, and no other may be running.
pub fn start(paths: &Paths, purpose: Purpose, extent: Extent, nodes: Nodes) -> Result<State> {
    heading("starting the cluster");
    let state = create(paths, purpose, nodes, extent)?;
    install(paths, state, extent)
}

fn install(paths: &Paths, state: State, extent: Extent) -> Result<State> {
    if extent >= Extent::Chart {
        chart::install(paths, &state)?;
    }
    if extent >= Extent::Policy {
        chart::apply_policy(paths)?;
    }
    Ok(state)
}

/// Installs missing packages, and builds the tools, what runs in the cluster, and for tests the tests too.
pub fn build(paths: &Paths, purpose: Purpose, extent: Extent, nodes: Nodes) -> Result<()> {
    let scope = match purpose {
        _ if extent == Extent::Bare => Scope::Pods,
        Purpose::Up | Purpose::Demo => Scope::Programs,
        Purpose::Test => Scope::Tests,
    };
    // At the same time: each of the two compilers often has work for one core only.
    thread::scope(|threads| {
        let workspace = threads.spawn(|| build_workspace(paths, scope));
        build_tools(paths, purpose, nodes)?;
        let step = Step::start("building the workspace");
        while !workspace.is_finished() {
            step.tick(&cargo::progress(paths));
            thread::sleep(Duration::from_millis(50));
        }
        workspace.join().map_err(|_| anyhow!("the thread of the workspace's build panicked"))??;
        step.done();
        anyhow::Ok(())
    })?;
    if nodes.is_real() { images::build(paths, scope != Scope::Pods) } else { Ok(()) }
}

/// Installs missing packages, and builds the programs that a cluster runs.
fn build_tools(paths: &Paths, purpose: Purpose, nodes: Nodes) -> Result<()> {
    let real = nodes.is_real();
    packages::install(paths, if real { packages::Purpose::Nodes } else { packages::Purpose::Tools })?;
    let has_older = nodes.real().any(|node| Runtime::of(node) != Runtime::Containerd2);
    let parts = [
        (real, Part::RealNodes),
        (has_older, Part::OlderRuntime),
        // Tests and people may add a fleet of simulated nodes to the real ones; the demo does not.
        (!real || purpose != Purpose::Demo, Part::SimulatedNodes),
        (real && purpose == Purpose::Test, Part::Tests),
    ];
    let parts: Vec<Part> = parts.into_iter().filter_map(|(is_needed, part)| is_needed.then_some(part)).collect();
    tools::build(paths, nodes.kubernetes(), &parts)
}

fn create(paths: &Paths, purpose: Purpose, nodes: Nodes, extent: Extent) -> Result<State> {
    let state = control_plane::start(paths, purpose, nodes)?;
    if !nodes.is_real() {
        kwok::start(paths)?;
        return Ok(state);
    }
    let step = Step::start("starting the nodes' container runtimes");
    for node in nodes.real() {
        fs::create_dir_all(paths.standin(node))?;
        add_gpus(paths, node)?;
        control::boot(paths, &state, node)?;
        // Tests install the drivers that they need.
        if extent > Extent::Bare && purpose != Purpose::Test {
            install_host_driver(paths, &state, node)?;
        }
    }
    step.done();
    import(paths, &state, extent > Extent::Bare)?;
    for node in nodes.real() {
        control::start_kubelet(paths, &state, node)?;
    }
    for node in nodes.real() {
        let step = Step::start(format!("waiting for node {}", node.name()));
        control::wait_ready(paths, node)?;
        step.done();
    }
    Ok(state)
}

/// Returns the cluster's state, if all of its parts are running.
pub fn running(paths: &Paths) -> Option<State> {
    let state = State::load(paths)?;
    let nodes = match state.nodes {
        Nodes::Real(_) => state.nodes.real().all(|node| control::is_running(paths, node)),
        Nodes::Kwok(_) => kwok::is_running(paths),
    };
    (nodes && control_plane::is_running(paths, &state)).then_some(state)
}

/// Returns the names of the cluster's real nodes; none if there is no cluster.
pub fn real_nodes(paths: &Paths) -> Vec<String> {
    State::load(paths).into_iter().flat_map(|state| state.nodes.real().map(NodeId::name)).collect()
}

/// Stops the cluster and removes all of it except caches and logs. Has no effect if there is no cluster. With the cluster of the checkout goes
/// the second one, which only tests have.
pub fn down(paths: &Paths) -> Result<()> {
    if paths.state == paths.base {
        down(&Paths::simulated())?;
    }
    if paths.cluster().exists() || paths.nodes().exists() {
        let step = Step::start("taking the cluster down");
        for name in [clients::OPERATOR_PROCESS, clients::STANDBY_PROCESS, clients::PROBE_PROCESS] {
            clients::stop_process(paths, name)?;
        }
        for node in NodeId::first(MAX_NODES) {
            control::stop(paths, node)?;
        }
        cgroups::remove_all(paths)?;
        kwok::stop(paths)?;
        control_plane::stop(paths)?;
        // A cluster of another build of this program may have further programs.
        for name in records(paths).names() {
            records(paths).stop(&name, Duration::from_secs(5))?;
        }
        let left = records(paths).names();
        if !left.is_empty() {
            bail!("still recorded as processes of the cluster: {}", left.join(", "));
        }
        control::remove_disks(paths)?;
        fs::remove_dir_all(paths.cluster()).or_else(ignore_missing)?;
        fs::remove_file(paths.kubeconfig()).or_else(ignore_missing)?;
        step.done();
    }
    Ok(())
}

/// Removes a cluster that tests or a demo have left, for a command that needs a new one. Fails if a person's cluster is
/// running.
pub fn remove_leftover(paths: &Paths) -> Result<()> {
    if running(paths).is_some_and(|state| state.purpose == Purpose::Up) {
        bail!(
            "the cluster of `cargo xtask up` is running, and this command needs its own: run `cargo xtask down` first"
        );
    }
    clear(paths)
}

/// Runs `work` and then removes the cluster, whether `work` succeeded or not.
pub fn then_down<T>(paths: &Paths, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = work();
    begin_cleanup();
    down(paths).context("taking the cluster down")?;
    outcome
}

/// The hardware of a machine, and the driver of its operating system image.
struct Machine {
    gpus: Vec<Gpu>,
    host_driver: Option<&'static str>,
}

/// The machines of clusters for people have different models, as in a fleet that has grown over time.
fn machine(node: NodeId) -> Machine {
    match node.number() % 3 {
        1 => Machine { gpus: Gpu::h100(8), host_driver: None },
        2 => Machine { gpus: Gpu::several(4, "NVIDIA A100-SXM4-80GB", 0x20b2, 81_920), host_driver: None },
        // Its operating system image has a driver.
        _ => Machine { gpus: Gpu::several(1, "Tesla T4", 0x1eb8, 15_360), host_driver: Some("580.173.02") },
    }
}

/// Adds the GPUs to a machine before it boots.
fn add_gpus(paths: &Paths, node: NodeId) -> Result<()> {
    Standin::new(paths.standin(node)).plug(&machine(node).gpus)
}

/// Installs the driver of the machine's operating system image after it has booted. The programs must have been built.
fn install_host_driver(paths: &Paths, state: &State, node: NodeId) -> Result<()> {
    let Some(version) = machine(node).host_driver else { return Ok(()) };
    let node = RealNode::new(paths.clone(), state.clone(), node);
    node.set_host_driver(&HostDriver::Loaded(version.to_owned()))
}
