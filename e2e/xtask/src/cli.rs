//! The command line of `cargo xtask`.

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use cluster::{
    clients,
    hidden::Hidden,
    lifecycle::{self, Extent},
    state::{Nodes, Purpose},
};
use harness::{
    cargo, errln,
    interrupts::{begin_cleanup, catch_interrupts},
    lock::Lock,
    node_id::{DEFAULT_NODES, MAX_NODES},
    outln,
    paths::Paths,
    tools::Kubernetes,
};

use super::{demo, mutations, release, simulate, test_run};

/// A real Kubernetes cluster on this machine, with all its files in target/e2e.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Start a cluster with operator and example policy, and leave it running.
    Up {
        /// Start only the cluster, without operator and policy.
        #[arg(long)]
        no_chart: bool,
        /// Use one kwok node instead of real nodes, as without root.
        #[arg(long, conflicts_with = "nodes")]
        kwok: bool,
        /// The number of real nodes.
        #[arg(long, default_value_t = DEFAULT_NODES, value_parser = clap::value_parser!(u8).range(1..=i64::from(MAX_NODES)))]
        nodes: u8,
        /// Use the oldest supported Kubernetes, with one kwok node.
        #[arg(long, conflicts_with = "nodes")]
        oldest_kubernetes: bool,
    },
    /// Stop the cluster and remove everything except build results.
    Down,
    /// Show how bare GPU nodes become schedulable, one of them after a failure, then stop the cluster.
    Demo(demo::Options),
    /// Run all tests; the end-to-end tests get their own cluster.
    Test {
        /// Run only end-to-end tests whose names contain this.
        filter: Option<String>,
        /// Run only the end-to-end tests on simulated nodes, in a cluster of the oldest supported Kubernetes.
        #[arg(long)]
        oldest_kubernetes: bool,
    },
    /// Write the files that are generated from the sources, and print those that changed.
    Generate,
    /// Make the images, the chart's archive and everything else that belongs to a version, in target/release-files.
    Release(release::Options),
    /// Search with random fleets and random orders of steps, without a cluster, until one violates a law.
    Simulate(simulate::Options),
    /// Break the product on purpose, one rule at a time in a copy of it, and run the test that must find it.
    Mutations(mutations::Options),
    /// Measure API requests, memory and processor time of operator and probe, on simulated nodes.
    #[command(disable_help_flag = true)]
    Benchmark {
        /// The options: see `cargo xtask benchmark --help`.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },
    #[command(flatten)]
    Hidden(Hidden),
}

/// Runs the command given by this process's arguments.
pub(super) fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            errln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    let paths = Paths::new();
    match task {
        // It does not catch interrupts.
        Task::Hidden(command) => return command.run(&paths),
        Task::Demo(options) => {
            let _lock = Lock::take(&paths, "demo")?;
            catch_interrupts()?;
            demo::run(&paths, &options)?;
        }
        Task::Test { filter, oldest_kubernetes } => {
            let _lock = Lock::take(&paths, "test")?;
            catch_interrupts()?;
            test_run::run(&paths, filter.as_deref(), oldest_kubernetes)?;
        }
        // Programs of their own, so that a change of what they use does not rebuild this one.
        Task::Generate => cargo::exec(&paths, "generated", &[])?,
        Task::Benchmark { options } => cargo::exec(&paths, "benchmark", &options)?,
        Task::Release(options) => {
            let _lock = Lock::take(&paths, "release")?;
            catch_interrupts()?;
            release::run(&paths, &options)?;
        }
        Task::Simulate(options) => {
            catch_interrupts()?;
            simulate::run(&paths, &options)?;
        }
        Task::Mutations(options) => {
            catch_interrupts()?;
            mutations::run(&paths, &options)?;
        }
        Task::Up { no_chart, kwok, nodes, oldest_kubernetes } => {
            let _lock = Lock::take(&paths, "up")?;
            catch_interrupts()?;
            let extent = if no_chart { Extent::Bare } else { Extent::Policy };
            let nodes = if oldest_kubernetes {
                Nodes::Kwok(Kubernetes::Oldest)
            } else {
                lifecycle::choose_nodes(if kwok { 0 } else { nodes })
            };
            up(&paths, extent, nodes)?;
        }
        Task::Down => {
            let _lock = Lock::take(&paths, "down")?;
            catch_interrupts()?;
            begin_cleanup();
            lifecycle::down(&paths)?;
            outln!("no cluster is running; the caches are in {}", paths.base.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(paths: &Paths, extent: Extent, nodes: Nodes) -> Result<()> {
    let was_running = lifecycle::running(paths).is_some();
    if let Err(error) = lifecycle::up(paths, Purpose::Up, extent, nodes) {
        // A half-started cluster is useless, and its logs stay. A cluster that was already running is kept.
        if was_running {
            return Err(error);
        }
        return lifecycle::then_down(paths, || Err(error));
    }
    outln!("\nThe cluster is running. In your shell:\n");
    outln!("  export KUBECONFIG=\"{}\"", paths.kubeconfig().display());
    outln!("  export PATH=\"{}:$PATH\"", clients::folder(paths).display());
    outln!("\nStop it with: cargo xtask down");
    Ok(())
}
