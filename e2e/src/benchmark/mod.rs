//! `benchmark`: what the operator asks of the API server and of its machine, on fleets of simulated nodes of several
//! sizes. It prints figures, and fails only where they cannot be had.

mod figures;
mod measure;
mod page;
mod picture;
mod table;

use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;
use kube::core::Duration as Time;

use self::figures::Figures;
use crate::{
    cluster::Cluster,
    lifecycle::{self, Extent},
    paths::Paths,
    progress::heading,
    state::{NodeKind, Purpose},
};

/// What is to be measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// The sizes of the fleets, in nodes; each gets a fresh cluster.
    #[arg(long, value_delimiter = ',', default_value = "100,1000,3000")]
    nodes: Vec<u32>,
    /// How long the settled fleet is watched.
    #[arg(long, default_value = "120s")]
    settled: Time,
    /// Keep the figures and their picture in docs/.
    #[arg(long)]
    write: bool,
}

/// Measures every size and prints what came of it.
pub(crate) fn run(paths: &Paths, options: &Options) -> Result<()> {
    lifecycle::vacate(paths)?;
    lifecycle::then_down(paths, || {
        let settled = options.settled.into();
        let mut all = Vec::new();
        for &nodes in &options.nodes {
            let figures =
                on_fresh_cluster(paths, nodes, settled).with_context(|| format!("a fleet of {nodes} nodes"))?;
            for missed in figures::missed(&figures) {
                say!("  ! {missed}");
            }
            all.push(figures);
            // A later size may fail, or somebody may have seen enough.
            say!("\n{}", table::tables(&all));
        }
        if options.write { page::write(paths, &all) } else { Ok(()) }
    })
}

fn on_fresh_cluster(paths: &Paths, nodes: u32, settled: Duration) -> Result<Figures> {
    heading(&format!("{nodes} nodes"));
    lifecycle::down(paths)?;
    lifecycle::up(paths, Purpose::Test, Extent::Chart, NodeKind::Kwok)?;
    lifecycle::build_release(paths)?;
    let runtime = tokio::runtime::Runtime::new()?;
    runtime.block_on(async {
        let cluster = Cluster::connect().await?;
        measure::measure(&cluster, nodes, settled).await
    })
}
