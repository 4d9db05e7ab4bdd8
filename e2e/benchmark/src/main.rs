//! `benchmark`: measures API requests, memory and processor time of operator and probe. It prints the figures, and fails only if they cannot
//! be measured. `docs/operate/scale.md` has the figures of the last run.

mod busy;
mod fleets;
mod health;
mod probe;
mod status;
mod table;
mod update;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::{Context, Result};
use clap::{Args, Parser};
use cluster::{
    hidden::Hidden,
    lifecycle::{self, Extent},
    state::{Nodes, Purpose},
};
use cluster_client::handle::Cluster;
use harness::{
    cargo::{Build, build_release},
    errln,
    interrupts::catch_interrupts,
    lock::Lock,
    outln,
    paths::Paths,
    progress::heading,
    tools::Kubernetes,
};
use kube::core::Duration as Time;

use self::{health::Load, table::Column};

/// Measures API requests, memory and processor time of operator and probe, on simulated nodes.
#[derive(Parser)]
#[command(name = "cargo xtask benchmark", bin_name = "cargo xtask benchmark", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    hidden: Option<Hidden>,
    #[command(flatten)]
    options: Options,
}

/// What to measure. The default is the operator during the installation of fleets.
#[derive(Args, Clone, Copy, Debug)]
#[group(multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "one flag for each subject, of which one is set")]
struct Subject {
    /// Measure the operator while the health of GPUs changes.
    #[arg(long)]
    health: bool,
    /// Measure the operator while the driver of the fleet is updated.
    #[arg(long)]
    update: bool,
    /// Measure the operator while an update of the driver waits for GPU pods on all nodes.
    #[arg(long)]
    busy: bool,
    /// Measure `kubectl gpu-fleet` on the objects of a fleet.
    #[arg(long)]
    status: bool,
    /// Measure the probe.
    #[arg(long, conflicts_with = "nodes")]
    probe: bool,
}

/// What to measure, and how.
#[derive(Args, Clone, Debug)]
struct Options {
    #[command(flatten)]
    subject: Subject,
    /// The sizes of the fleets, in nodes; each gets a new cluster [default: 100,1000,3000; with --health and --busy 1000, with --update 100,1000, with --status 5000].
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<u32>,
    /// How long the settled fleet, or the idle probe, is measured.
    #[arg(long, default_value = "120s")]
    settled: Time,
    /// With --health: the number of changes per second.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    changes: u32,
    /// With --health: how long GPUs change.
    #[arg(long, default_value = "60s")]
    changing: Time,
    /// Measure this build of the operator, for example that of an earlier commit, instead of the checkout's.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["probe", "status"])]
    operator: Option<PathBuf>,
}

fn main() -> ExitCode {
    let paths = Paths::new();
    let Arguments { hidden, options } = Arguments::parse();
    let done = match hidden {
        Some(command) => command.run(&paths),
        None => run(&paths, &options).map(|()| ExitCode::SUCCESS),
    };
    done.unwrap_or_else(|error| {
        errln!("error: {error:#}");
        ExitCode::FAILURE
    })
}

/// Measures and prints the figures.
fn run(paths: &Paths, options: &Options) -> Result<()> {
    let _lock = Lock::take(paths, "benchmark")?;
    catch_interrupts()?;
    lifecycle::remove_leftover(paths)?;
    lifecycle::then_down(paths, || measure(paths, options))
}

fn measure(paths: &Paths, options: &Options) -> Result<()> {
    let settled = options.settled.into();
    match options.subject {
        Subject { health: true, .. } => {
            let load = Load { rate: options.changes, time: options.changing.into() };
            fleets(paths, options, &[1_000], &async |cluster, operator, nodes| {
                health::measure(cluster, operator, nodes, load).await
            })
        }
        Subject { update: true, .. } => fleets(paths, options, &[100, 1_000], &async |cluster, operator, nodes| {
            Box::pin(update::measure(cluster, operator, nodes)).await
        }),
        Subject { busy: true, .. } => fleets(paths, options, &[1_000], &async |cluster, operator, nodes| {
            Box::pin(busy::measure(cluster, operator, nodes)).await
        }),
        Subject { status: true, .. } => sizes(options, &[5_000], |nodes| {
            let program = Build::Release.file(paths, status::PROGRAM);
            on_new_cluster(paths, &["gpu-operator-cli"], async |cluster| {
                Box::pin(status::measure(cluster, &program, nodes)).await
            })
        }),
        Subject { probe: true, .. } => {
            heading("the probe");
            let packages = ["nvml-probe", "standin-nvml"];
            let columns = on_new_cluster(paths, &packages, async |cluster| probe::measure(cluster, settled).await)?;
            show(&columns);
            Ok(())
        }
        Subject { .. } => fleets(paths, options, &[100, 1_000, 3_000], &async |cluster, operator, nodes| {
            Box::pin(fleets::measure(cluster, operator, nodes, settled)).await
        }),
    }
}

/// Measures fleets, and prints the figures after each size, because a later size may fail or be interrupted.
fn sizes(options: &Options, default: &[u32], measure: impl Fn(u32) -> Result<Column>) -> Result<()> {
    let mut columns = Vec::new();
    for nodes in if options.nodes.is_empty() { default } else { &options.nodes } {
        heading(&table::of_nodes(*nodes));
        columns.push(measure(*nodes).with_context(|| format!("a fleet of {nodes} nodes"))?);
        show(&columns);
    }
    Ok(())
}

fn show(columns: &[Column]) {
    for figure in columns.iter().flat_map(Column::exceeded) {
        outln!("  ! {figure}");
    }
    outln!("\n{}", table::tables(columns));
}

/// Measures fleets with the program of the operator, each in a new cluster.
fn fleets(
    paths: &Paths,
    options: &Options,
    default: &[u32],
    measure: &impl AsyncFn(&Cluster, &Path, u32) -> Result<Column>,
) -> Result<()> {
    let (packages, operator): (&[_], _) = match &options.operator {
        Some(file) => (&[], file.clone()),
        None => (&["gpu-operator"], Build::Release.file(paths, "gpu-operator")),
    };
    sizes(options, default, |nodes| {
        on_new_cluster(paths, packages, async |cluster| measure(cluster, &operator, nodes).await)
    })
}

/// Measures in a new cluster that has only the chart, with release builds of `packages`.
fn on_new_cluster<T>(paths: &Paths, packages: &[&str], measure: impl AsyncFnOnce(&Cluster) -> Result<T>) -> Result<T> {
    lifecycle::down(paths)?;
    lifecycle::up(paths, Purpose::Test, Extent::Chart, Nodes::Kwok(Kubernetes::Newest))?;
    if !packages.is_empty() {
        build_release(paths, packages)?;
    }
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { measure(&Cluster::connect().await?).await })
}
