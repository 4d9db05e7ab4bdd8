//! The commands of `cargo xtask`.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::{
    benchmark, demo,
    lifecycle::{self, Extent},
    lock::Lock,
    namespace, network,
    paths::Paths,
    process, stages,
    state::{MOST, NodeId, Nodes, Purpose, USUAL},
};

/// A real Kubernetes cluster on this machine, with everything it leaves under target/e2e.
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
        /// Only the cluster, without operator and policy.
        #[arg(long)]
        no_chart: bool,
        /// One kwok node in place of real ones, as without root.
        #[arg(long, conflicts_with = "nodes")]
        kwok: bool,
        /// How many real nodes.
        #[arg(long, default_value_t = USUAL, value_parser = clap::value_parser!(u8).range(1..=i64::from(MOST)))]
        nodes: u8,
    },
    /// End the cluster and remove all but what was built.
    Down,
    /// Show how a bare GPU node becomes schedulable, and take the cluster down again.
    Demo {
        /// Leave the cluster running.
        #[arg(long)]
        keep: bool,
    },
    /// Run all tests, the end-to-end tests on a cluster of their own.
    Test {
        /// Only the end-to-end tests whose names contain this.
        filter: Option<String>,
    },
    /// Measure what operator and probe ask of the API server and of their machines, on simulated nodes.
    Benchmark(benchmark::Options),
    /// `scratch`: hidden.
    #[command(hide = true)]
    Scratch {
        /// What to run.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// `network-hold`: hidden.
    #[command(hide = true)]
    NetworkHold {
        /// The API server's.
        #[arg(long)]
        port: u16,
    },
    /// `network-exec`: hidden.
    #[command(hide = true)]
    NetworkExec {
        /// The process that holds the network.
        #[arg(long)]
        holder: u32,
        /// What to run.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// `node-start`: hidden.
    #[command(hide = true)]
    NodeStart {
        /// Which node.
        #[arg(long)]
        number: u8,
        /// The process that holds the network.
        #[arg(long)]
        network: u32,
    },
    /// `node-init`: hidden.
    #[command(hide = true)]
    NodeInit {
        /// Which node.
        #[arg(long)]
        number: u8,
    },
    /// `node-exec`: hidden.
    #[command(hide = true)]
    NodeExec {
        /// Which node.
        #[arg(long)]
        number: u8,
        /// The process that holds the node.
        #[arg(long)]
        process: u32,
        /// Leave the command running, its output in this file.
        #[arg(long)]
        log: Option<PathBuf>,
        /// What to run.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
}

/// Runs the command that the arguments name.
#[must_use]
pub fn main() -> ExitCode {
    match run(Arguments::parse().command) {
        Ok(code) => code,
        Err(error) => {
            warn!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    let paths = Paths::new();
    match task {
        // These enter namespaces, which a program with threads may not.
        Task::NetworkHold { port } => network::hold(&paths, port)?,
        Task::NetworkExec { holder, command } => network::exec(holder, &command)?,
        Task::NodeStart { number, network } => namespace::start(&paths, NodeId::numbered(number), network)?,
        Task::NodeInit { number } => namespace::init(&paths, NodeId::numbered(number))?,
        Task::NodeExec { number, process, log, command } => {
            return namespace::exec(&paths, NodeId::numbered(number), process, log.as_deref(), &command);
        }
        Task::Scratch { command } => return namespace::scratch(&command),
        Task::Demo { keep } => {
            let _lock = Lock::take(&paths, "demo")?;
            process::catch_interrupts()?;
            demo::run(&paths, keep)?;
        }
        Task::Test { filter } => {
            let _lock = Lock::take(&paths, "test")?;
            process::catch_interrupts()?;
            stages::run(&paths, filter.as_deref())?;
        }
        Task::Benchmark(options) => {
            let _lock = Lock::take(&paths, "benchmark")?;
            process::catch_interrupts()?;
            benchmark::run(&paths, &options)?;
        }
        Task::Up { no_chart, kwok, nodes } => {
            let _lock = Lock::take(&paths, "up")?;
            process::catch_interrupts()?;
            let extent = if no_chart { Extent::Bare } else { Extent::Policy };
            up(&paths, extent, lifecycle::nodes(if kwok { 0 } else { nodes }))?;
        }
        Task::Down => {
            let _lock = Lock::take(&paths, "down")?;
            process::catch_interrupts()?;
            process::begin_cleaning();
            lifecycle::down(&paths)?;
            say!("nothing runs; the caches are in {}", paths.base.display());
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn up(paths: &Paths, extent: Extent, nodes: Nodes) -> Result<()> {
    let was_running = lifecycle::running(paths).is_some();
    if let Err(error) = lifecycle::up(paths, Purpose::Up, extent, nodes) {
        // Half a cluster is of use to nobody, and the logs stay. What ran before is not ours to end.
        if was_running {
            return Err(error);
        }
        return lifecycle::then_down(paths, || Err(error));
    }
    say!("\nThe cluster runs. In your shell:\n");
    say!("  export KUBECONFIG={}", paths.kubeconfig().display());
    say!("  export PATH={}:$PATH", paths.bin().display());
    say!("\nEnd it with: cargo xtask down");
    Ok(())
}
