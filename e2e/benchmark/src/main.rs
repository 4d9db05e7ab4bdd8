//! `benchmark`: measures API requests, memory and processor time of operator and probe. It prints the figures, and fails only
//! if they cannot be measured.
//!
//! ```text
//!   measure ── a fleet is installed ──▶ figures ─┐
//!      ├─▶ update ── another driver ─────────────┤
//!      ├─▶ busy ── another driver, GPU pods ─────┼─▶ row, table ──▶ page, plot
//!      ├─▶ status ── kubectl gpu-fleet ──────────┤
//!      └─▶ health ── random faults of GPUs ──────┤
//!           probe ── one node, no operator ──────┘
//! ```

mod busy;
mod fake_host;
mod figures;
mod health;
mod measure;
mod page;
mod phase;
mod plot;
mod probe;
mod random_faults;
mod row;
mod status;
mod table;
mod update;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
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

use self::{health::Load, page::Section};

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
    #[arg(long, value_name = "FILE", conflicts_with_all = ["probe", "status", "write"])]
    operator: Option<PathBuf>,
    /// Write the figures and their plot to docs/.
    #[arg(long, conflicts_with_all = ["busy", "status"])]
    write: bool,
}

impl Options {
    fn sizes(&self, default: &[u32]) -> Vec<u32> {
        if self.nodes.is_empty() { default.to_vec() } else { self.nodes.clone() }
    }
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
    lifecycle::then_down(paths, || {
        let measure = match options.subject {
            Subject { health: true, .. } => health,
            Subject { update: true, .. } => update,
            Subject { busy: true, .. } => busy,
            Subject { status: true, .. } => status,
            Subject { probe: true, .. } => probe,
            Subject { .. } => fleets,
        };
        measure(paths, options)
    })
}

fn fleets(paths: &Paths, options: &Options) -> Result<()> {
    let settled = Duration::from(options.settled);
    let mut all = Vec::new();
    for nodes in options.sizes(&[100, 1_000, 3_000]) {
        let figures = on_fleet(paths, options, nodes, async |cluster, operator| {
            Box::pin(measure::measure(cluster, operator, nodes, settled)).await
        })?;
        all.push(figures);
        // Printed after each size, because a later size may fail or be interrupted.
        show(&all.last().map(figures::exceeded).unwrap_or_default(), &table::fleets(&all));
    }
    if options.write {
        let circumstances = format!("settled fleets were watched for {} s", settled.as_secs());
        page::write(paths, Section::Fleets, &circumstances, &table::fleets(&all))?;
        page::draw(paths, &all)?;
    }
    Ok(())
}

fn health(paths: &Paths, options: &Options) -> Result<()> {
    let load = Load { rate: options.changes, time: options.changing.into() };
    let mut all = Vec::new();
    for nodes in options.sizes(&[1_000]) {
        let figures = on_fleet(paths, options, nodes, async |cluster, operator| {
            health::measure(cluster, operator, nodes, load).await
        })?;
        all.push(figures);
        show(&all.last().map(health::exceeded).unwrap_or_default(), &health::tables(&all));
    }
    if options.write {
        page::write(paths, Section::Health, &health::circumstances(load), &health::tables(&all))?;
    }
    Ok(())
}

fn update(paths: &Paths, options: &Options) -> Result<()> {
    let mut all = Vec::new();
    for nodes in options.sizes(&[100, 1_000]) {
        let measure =
            async |cluster: &Cluster, operator: &Path| Box::pin(update::measure(cluster, operator, nodes)).await;
        all.push(on_fleet(paths, options, nodes, measure)?);
        show(&[], &update::tables(&all));
    }
    if options.write {
        page::write(paths, Section::Update, &update::circumstances(), &update::tables(&all))?;
    }
    Ok(())
}

fn busy(paths: &Paths, options: &Options) -> Result<()> {
    let mut all = Vec::new();
    for nodes in options.sizes(&[1_000]) {
        let measure =
            async |cluster: &Cluster, operator: &Path| Box::pin(busy::measure(cluster, operator, nodes)).await;
        all.push(on_fleet(paths, options, nodes, measure)?);
        show(&all.last().map(busy::exceeded).unwrap_or_default(), &busy::tables(&all));
    }
    Ok(())
}

fn status(paths: &Paths, options: &Options) -> Result<()> {
    let mut all = Vec::new();
    for nodes in options.sizes(&[5_000]) {
        heading(&table::nodes(nodes));
        let program = Build::Release.file(paths, status::PROGRAM);
        let measure = async |cluster: &Cluster| Box::pin(status::measure(cluster, &program, nodes)).await;
        all.push(on_new_cluster(paths, &["gpu-operator-cli"], measure)?);
        show(&all.last().map(status::exceeded).unwrap_or_default(), &status::tables(&all));
    }
    Ok(())
}

fn probe(paths: &Paths, options: &Options) -> Result<()> {
    let idle = options.settled.into();
    heading("the probe");
    let packages = ["nvml-probe", "standin-nvml"];
    let all = on_new_cluster(paths, &packages, async |cluster| probe::measure(cluster, idle).await)?;
    show(&probe::exceeded(&all), &probe::tables(&all));
    if options.write {
        page::write(paths, Section::Probe, &probe::circumstances(), &probe::tables(&all))?;
    }
    Ok(())
}

fn show(exceeded: &[String], tables: &str) {
    for figure in exceeded {
        outln!("  ! {figure}");
    }
    outln!("\n{tables}");
}

/// Measures a fleet in a new cluster, with the program of the operator.
fn on_fleet<T>(
    paths: &Paths,
    options: &Options,
    nodes: u32,
    measure: impl AsyncFnOnce(&Cluster, &Path) -> Result<T>,
) -> Result<T> {
    heading(&table::nodes(nodes));
    let (packages, operator): (&[_], _) = match &options.operator {
        Some(file) => (&[], file.clone()),
        None => (&["gpu-operator"], Build::Release.file(paths, "gpu-operator")),
    };
    on_new_cluster(paths, packages, async |cluster| measure(cluster, &operator).await)
        .with_context(|| format!("a fleet of {nodes} nodes"))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        Ok(Arguments::try_parse_from(std::iter::once("benchmark").chain(line.split_whitespace()))?.options)
    }

    #[test]
    fn the_sizes_are_the_given_ones_or_the_measurements_default() {
        assert_eq!(parsed("").unwrap().sizes(&[100, 1_000]), [100, 1_000]);
        assert_eq!(parsed("--health --nodes 5,6").unwrap().sizes(&[1_000]), [5, 6]);
    }

    #[test]
    fn conflicting_options_are_rejected() {
        for line in [
            "--health --probe",
            "--health --update",
            "--busy --update",
            "--probe --nodes 5",
            "--health --changes 0",
            "--operator f --write",
            "--busy --write",
            "--status --write",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
