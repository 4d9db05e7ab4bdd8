//! `up` and `down`: everything from nothing, and nothing from everything.

use std::{collections::BTreeSet, fs, time::Duration};

use anyhow::{Context, Result, bail};
use nix::unistd::Uid;

use crate::{
    cgroups, chart, control_plane, images, kwok, machines, node, operator_process, packages,
    paths::Paths,
    probe_process,
    process::{self, begin_cleaning, run_logged},
    progress::{Step, heading},
    state::{MOST, NodeId, Nodes, Purpose, State, records},
    tools,
};

/// How much of a cluster is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// Control plane and node.
    Bare,
    /// Also our chart.
    Chart,
    /// Also the example policy.
    Policy,
}

/// So many real nodes if they can run here, and where not, why. Of zero, none is wanted.
pub(crate) fn nodes(count: u8) -> Nodes {
    if count == 0 {
        Nodes::Kwok
    } else if Uid::effective().is_root() {
        Nodes::Real(count)
    } else {
        say!(
            "! not root: containerd and kubelet cannot run, so one kwok node stands for a GPU node.\n\
             ! No container runs on it: nothing becomes Ready through real pods. Run as root for that."
        );
        Nodes::Kwok
    }
}

/// Builds the tools.
pub(crate) fn prepare(paths: &Paths, purpose: Purpose, nodes: Nodes) -> Result<()> {
    let real = nodes.is_real();
    packages::install(paths, real)?;
    // Tests, and a person too, may add a fleet of simulated nodes to a real one; the demo does not.
    tools::build(paths, real, !real || purpose != Purpose::Demo)
}

/// Builds the workspace's programs and libraries, as the tests use them too; without `all`, only what any pod needs.
pub(crate) fn build_workspace(paths: &Paths, all: bool) -> Result<()> {
    cargo_build(paths, "building the workspace", if all { &["--workspace"] } else { &["--package=e2e"] })
}

/// Builds packages as users run them.
pub(crate) fn build_release(paths: &Paths, packages: &[&str]) -> Result<()> {
    let packages: Vec<String> = packages.iter().map(|package| format!("--package={package}")).collect();
    let args: Vec<&str> = std::iter::once("--release").chain(packages.iter().map(String::as_str)).collect();
    cargo_build(paths, "building what is measured", &args)
}

fn cargo_build(paths: &Paths, what: &str, args: &[&str]) -> Result<()> {
    let step = Step::start(what);
    let log = paths.log("cargo-build");
    let mut cargo = process::cargo(&paths.root);
    cargo.arg("build").args(args);
    run_logged(&mut cargo, &log, || {
        let text = process::tail(&log, 400);
        step.tick(text.lines().last().unwrap_or_default().trim());
    })?;
    step.done();
    Ok(())
}

/// Brings the cluster up to `extent`. What runs already is kept.
pub(crate) fn up(paths: &Paths, purpose: Purpose, extent: Extent, nodes: Nodes) -> Result<State> {
    let state = if let Some(state) = running(paths) {
        say!("the cluster runs already");
        if state.nodes.is_real() {
            refresh(paths, &state, extent)?;
        }
        state
    } else {
        // What a killed command or a restart of the machine may have left.
        down(paths)?;
        fs::remove_dir_all(paths.logs()).or_else(missing_is_fine)?;
        prepare(paths, purpose, nodes)?;
        if nodes.is_real() {
            build(paths, extent)?;
        }
        heading("starting the cluster");
        create(paths, purpose, nodes, extent)?
    };
    if extent >= Extent::Chart {
        chart::install(paths, &state)?;
    }
    if extent >= Extent::Policy {
        chart::apply_policy(paths)?;
    }
    Ok(state)
}

fn build(paths: &Paths, extent: Extent) -> Result<()> {
    let all = extent > Extent::Bare;
    build_workspace(paths, all)?;
    images::build(paths, all)
}

/// Brings what was changed since into a cluster that runs.
fn refresh(paths: &Paths, state: &State, extent: Extent) -> Result<()> {
    build(paths, extent)?;
    let mut new = BTreeSet::new();
    for node in state.nodes.real() {
        new.extend(images::import(paths, state, node, extent > Extent::Bare)?);
    }
    chart::restart(paths, &new)
}

fn create(paths: &Paths, purpose: Purpose, nodes: Nodes, extent: Extent) -> Result<State> {
    let state = control_plane::start(paths, purpose, nodes)?;
    if nodes == Nodes::Kwok {
        kwok::start(paths)?;
        return Ok(state);
    }
    let step = Step::start("starting the nodes' container runtimes");
    for node in nodes.real() {
        fs::create_dir_all(paths.standin(node))?;
        machines::plug(paths, node)?;
        node::boot(paths, &state, node)?;
        // Tests bring what they need.
        if extent > Extent::Bare && purpose != Purpose::Test {
            machines::furnish(paths, &state, node)?;
        }
    }
    step.done();
    for node in nodes.real() {
        images::import(paths, &state, node, extent > Extent::Bare)?;
        node::start_kubelet(paths, &state, node)?;
    }
    for node in nodes.real() {
        let step = Step::start(format!("waiting for node {}", node.name()));
        node::wait_ready(paths, node)?;
        step.done();
    }
    Ok(state)
}

/// The cluster, if all of it runs.
pub(crate) fn running(paths: &Paths) -> Option<State> {
    let state = State::load(paths)?;
    let nodes = match state.nodes {
        Nodes::Real(_) => state.nodes.real().all(|node| node::is_running(paths, node)),
        Nodes::Kwok => kwok::is_running(paths),
    };
    (nodes && control_plane::is_running(paths, &state)).then_some(state)
}

/// The names of the real nodes of the cluster, if one is there.
pub(crate) fn real_nodes(paths: &Paths) -> Vec<String> {
    State::load(paths).into_iter().flat_map(|state| state.nodes.real().map(NodeId::name)).collect()
}

/// Ends everything and removes all but the caches and the logs. Without effect when nothing is there.
pub(crate) fn down(paths: &Paths) -> Result<()> {
    let there = paths.cluster().exists() || paths.nodes().exists();
    if there {
        let step = Step::start("taking the cluster down");
        operator_process::stop(paths)?;
        probe_process::stop(paths)?;
        for node in NodeId::first(MOST) {
            node::stop(paths, node)?;
        }
        cgroups::remove_all(paths)?;
        kwok::stop(paths)?;
        control_plane::stop(paths)?;
        // A cluster that an earlier version started may have other programs.
        for name in records(paths).names() {
            records(paths).stop(&name, Duration::from_secs(5))?;
        }
        let left = records(paths).names();
        if !left.is_empty() {
            bail!("still on record: {}", left.join(", "));
        }
        node::remove_disks(paths)?;
        fs::remove_dir_all(paths.cluster()).or_else(missing_is_fine)?;
        fs::remove_file(paths.kubeconfig()).or_else(missing_is_fine)?;
        step.done();
    }
    Ok(())
}

/// Takes down what tests or a demo have left, for a command that needs the cluster to itself.
pub(crate) fn vacate(paths: &Paths) -> Result<()> {
    if running(paths).is_some_and(|state| state.purpose == Purpose::Up) {
        bail!("a cluster of yours runs, and this needs one to itself: `cargo xtask down` first");
    }
    down(paths)
}

/// Runs `work` and takes the cluster down after it, whatever came of it.
pub(crate) fn then_down<T>(paths: &Paths, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let outcome = work();
    begin_cleaning();
    down(paths).context("taking the cluster down")?;
    outcome
}

/// For the removal of what may not be there.
pub(crate) fn missing_is_fine(error: std::io::Error) -> std::io::Result<()> {
    if error.kind() == std::io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
