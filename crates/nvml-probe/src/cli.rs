//! The command line.

mod detect;
mod error;
mod run;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use gpu_host::{
    nvml::child::{self, ChildOptions},
    process::run_on_this_thread,
};
use node_tools::cli::Tool;

use self::{detect::Detect, run::Run};

pub use self::error::CliError;

/// The node agent of the GPU operator, and the tools of its pods.
#[derive(Debug, Parser)]
#[command(name = "nvml-probe", version)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Report this node's GPUs and driver to its `GpuNode` until terminated.
    Run(Run),
    /// Create this node's `GpuNode` as soon as the node has a GPU, until terminated.
    Detect(Detect),
    #[command(flatten)]
    Tool(Tool),
    /// Load NVML and answer queries. The probe starts this itself.
    #[command(hide = true)]
    NvmlChild(ChildOptions),
}

impl Cli {
    /// Runs the command.
    pub fn execute(self) -> Result<ExitCode, CliError> {
        match self.command {
            Command::Run(options) => run_on_this_thread(async |shutdown| options.run(shutdown).await),
            Command::Detect(options) => run_on_this_thread(async |shutdown| options.run(shutdown).await),
            Command::Tool(tool) => Ok(tool.run()?),
            Command::NvmlChild(options) => Ok(child::run(&options).map(|()| ExitCode::SUCCESS)?),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn the_chart_sets_existing_flags_only() {
        for (command, expected, template) in [
            ("run", "dcgm-metrics", include_str!("../../../charts/gpu-operator/templates/probe-daemonset.yaml")),
            ("detect", "interval", include_str!("../../../charts/gpu-operator/templates/detector-daemonset.yaml")),
        ] {
            let mut program = Cli::command();
            let command = program.find_subcommand_mut(command).unwrap();
            let known: Vec<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
            let set: Vec<_> = template.lines().filter_map(|line| line.trim().strip_prefix("- --")).collect();
            assert!(set.contains(&expected), "{set:?}");
            for flag in set {
                assert!(known.contains(&flag), "{flag} is not one of {known:?}");
            }
        }
    }
}
