//! `benchmark`: what the operator and the probe ask of the API server and of their machines. It prints figures, and fails
//! only where they cannot be had.
//!
//! ```text
//!   measure ── a fleet is installed ──▶ figures ─┐
//!      └─▶ health ── GPUs get sick ──────────────┼─▶ row, table ──▶ page
//!           probe ── one node, no operator ──────┘
//! ```

mod figures;
mod health;
mod host;
mod measure;
mod page;
mod phase;
mod picture;
mod probe;
mod row;
mod sickness;
mod table;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use kube::core::Duration as Time;

use self::{health::Load, page::Section};
use crate::{
    cluster::Cluster,
    lifecycle::{self, Extent},
    paths::Paths,
    progress::heading,
    state::{Nodes, Purpose},
};

/// What is to be measured: the operator as fleets are installed, unless said otherwise.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Measure the operator while the health of GPUs changes.
    #[arg(long, conflicts_with = "probe")]
    health: bool,
    /// Measure the probe.
    #[arg(long, conflicts_with = "nodes")]
    probe: bool,
    /// The sizes of the fleets, in nodes; each gets a fresh cluster [default: 100,1000,3000; with --health 1000].
    #[arg(long, value_delimiter = ',')]
    nodes: Vec<u32>,
    /// How long the settled fleet, or the probe at rest, is watched.
    #[arg(long, default_value = "120s")]
    settled: Time,
    /// With --health: how many GPUs change a second.
    #[arg(long, default_value = "10", value_parser = clap::value_parser!(u32).range(1..=1000))]
    changes: u32,
    /// With --health: how long they do.
    #[arg(long, default_value = "60s")]
    changing: Time,
    /// Keep the figures, and the picture of them, in docs/.
    #[arg(long)]
    write: bool,
}

impl Options {
    fn sizes(&self, default: &[u32]) -> Vec<u32> {
        if self.nodes.is_empty() { default.to_vec() } else { self.nodes.clone() }
    }
}

/// Measures and prints what came of it.
pub(crate) fn run(paths: &Paths, options: &Options) -> Result<()> {
    lifecycle::vacate(paths)?;
    lifecycle::then_down(paths, || {
        if options.health {
            health(paths, options)
        } else if options.probe {
            probe(paths, options)
        } else {
            fleets(paths, options)
        }
    })
}

fn fleets(paths: &Paths, options: &Options) -> Result<()> {
    let settled = Duration::from(options.settled);
    let mut all = Vec::new();
    for nodes in options.sizes(&[100, 1_000, 3_000]) {
        let figures =
            on_fleet(paths, nodes, async |cluster| Box::pin(measure::measure(cluster, nodes, settled)).await)?;
        all.push(figures);
        // A later size may fail, or somebody may have seen enough.
        show(&all.last().map(figures::missed).unwrap_or_default(), &table::fleets(&all));
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
        let figures = on_fleet(paths, nodes, async |cluster| health::measure(cluster, nodes, load).await)?;
        all.push(figures);
        show(&all.last().map(health::missed).unwrap_or_default(), &health::tables(&all));
    }
    if options.write {
        page::write(paths, Section::Health, &health::circumstances(load), &health::tables(&all))?;
    }
    Ok(())
}

fn probe(paths: &Paths, options: &Options) -> Result<()> {
    let rest = options.settled.into();
    heading("the probe");
    let packages = ["nvml-probe", "standin-nvml"];
    let all = on_fresh_cluster(paths, &packages, async |cluster| probe::measure(cluster, rest).await)?;
    show(&probe::missed(&all), &probe::tables(&all));
    if options.write {
        page::write(paths, Section::Probe, &probe::circumstances(), &probe::tables(&all))?;
    }
    Ok(())
}

fn show(missed: &[String], tables: &str) {
    for missed in missed {
        say!("  ! {missed}");
    }
    say!("\n{tables}");
}

fn on_fleet<T>(paths: &Paths, nodes: u32, measure: impl AsyncFnOnce(&Cluster) -> Result<T>) -> Result<T> {
    heading(&table::nodes(nodes));
    on_fresh_cluster(paths, &["gpu-operator"], measure).with_context(|| format!("a fleet of {nodes} nodes"))
}

/// In a cluster of the chart alone, with these packages built as users run them.
fn on_fresh_cluster<T>(
    paths: &Paths,
    packages: &[&str],
    measure: impl AsyncFnOnce(&Cluster) -> Result<T>,
) -> Result<T> {
    lifecycle::down(paths)?;
    lifecycle::up(paths, Purpose::Test, Extent::Chart, Nodes::Kwok)?;
    lifecycle::build_release(paths, packages)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async { measure(&Cluster::connect().await?).await })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn parsed(line: &str) -> Result<Options, clap::Error> {
        Ok(Line::try_parse_from(std::iter::once("benchmark").chain(line.split_whitespace()))?.options)
    }

    #[test]
    fn the_sizes_are_those_that_are_given_or_the_measurements_own() {
        assert_eq!(parsed("").unwrap().sizes(&[100, 1_000]), [100, 1_000]);
        assert_eq!(parsed("--health --nodes 5,6").unwrap().sizes(&[1_000]), [5, 6]);
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        for line in ["--health --probe", "--probe --nodes 5", "--health --changes 0"] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
