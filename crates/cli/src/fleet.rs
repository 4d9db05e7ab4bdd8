//! `kubectl gpu-fleet`: the command line of the kubectl plugin.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use k8s_openapi::jiff::Timestamp;
use thiserror::Error;

use crate::{
    bundle::{BundleError, SupportBundle},
    check::{CheckError, RunChecks},
    completion,
    connection::{Connection, ConnectionError},
    context::{COMMAND, Context, Outcome},
    explain::{Explain, ExplainError},
    images::{Images, ImagesError},
    plan::{Plan, PlanError},
    rollout::{Rollout, RolloutError},
    screen::Screen,
    status::{Status, StatusError},
};

/// The name of the program: kubectl finds it on the PATH.
const PROGRAM: &str = "kubectl-gpu_fleet";

/// Shows and explains the state of a fleet of GPU nodes.
#[derive(Debug, Parser)]
#[command(name = COMMAND, bin_name = COMMAND, version, max_term_width = 80)]
pub struct Fleet {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show what is ready, what is not, since when and what to do.
    Status(Status),
    Explain(Explain),
    /// Report which nodes the policies in a file would disrupt, in which order and for which pods; changes nothing.
    Plan(Plan),
    /// List the images that the nodes of policies may pull, one per line; needs no cluster.
    Images(Images),
    /// Check whether the installation works or, with --pre, whether the cluster is ready for it.
    Check(RunChecks),
    /// Attempt failed updates of a policy again, or pause and resume its rollout.
    Rollout(Rollout),
    SupportBundle(SupportBundle),
    /// Print a script that completes this command: `kubectl`, as the program kubectl_complete-gpu_fleet on the PATH, or for a shell and the
    /// name kubectl-gpu_fleet.
    Completion {
        /// What asks for completion.
        #[arg(value_enum)]
        of: Completed,
    },
    /// Print what may follow some words, for kubectl.
    #[command(hide = true)]
    Complete {
        /// The words, of which the last one may be incomplete.
        #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
        words: Vec<String>,
    },
}

/// What asks for completion.
#[derive(clap::ValueEnum, Clone, Copy, Debug)]
enum Completed {
    /// kubectl.
    Kubectl,
    /// The shell bash.
    Bash,
    /// The shell fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// The shell zsh.
    Zsh,
}

/// A reason why a command cannot do what it should.
#[derive(Debug, Error)]
pub enum FleetError {
    /// There is no connection to a cluster.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The state of the fleet is not known.
    #[error(transparent)]
    Status(#[from] StatusError),
    /// Nothing is explained.
    #[error(transparent)]
    Explain(#[from] ExplainError),
    /// Nothing is checked.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// It is not known what policies would do.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The images cannot be listed.
    #[error(transparent)]
    Images(#[from] ImagesError),
    /// A policy's rollout cannot be changed.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// There is no support bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

impl Fleet {
    /// Runs the command.
    pub async fn run(self) -> Result<ExitCode, FleetError> {
        let outcome = match &self.command {
            Command::Status(status) => status.run(&self.context(status.follows()).await?).await?,
            Command::Images(images) => {
                images.run()?;
                Outcome::Good
            }
            Command::Explain(explain) => match explain.without_cluster(Screen::of_stdout())? {
                Some(outcome) => outcome,
                None => explain.run(&self.context(false).await?).await?,
            },
            Command::Completion { of } => {
                let shell = match of {
                    Completed::Kubectl => None,
                    Completed::Bash => Some(Shell::Bash),
                    Completed::Fish => Some(Shell::Fish),
                    Completed::Powershell => Some(Shell::PowerShell),
                    Completed::Zsh => Some(Shell::Zsh),
                };
                let mut script = Vec::from(completion::SCRIPT);
                if let Some(shell) = shell {
                    script.clear();
                    clap_complete::generate(shell, &mut Self::command(), PROGRAM, &mut script);
                }
                io::stdout().write_all(&script)?;
                Outcome::Good
            }
            Command::Complete { words } => {
                io::stdout().write_all(completion::answer(&Self::command(), words).as_bytes())?;
                Outcome::Good
            }
            Command::Check(check) => check.run(&self.context(false).await?).await?,
            Command::Rollout(rollout) => rollout.run(&self.context(false).await?).await?,
            Command::SupportBundle(bundle) => bundle.run(&self.context(false).await?).await?,
            Command::Plan(plan) => {
                let client = if plan.needs_cluster() { Some(self.context(false).await?.client) } else { None };
                if plan.run(client).await? { Outcome::Changes } else { Outcome::Good }
            }
        };
        Ok(ExitCode::from(outcome.code()))
    }

    async fn context(&self, for_watches: bool) -> Result<Context, FleetError> {
        let (client, namespace) = self.connection.client(for_watches).await?;
        Ok(Context { client, namespace, screen: Screen::of_stdout(), now: Timestamp::now() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Fleet::command().debug_assert();
    }

    /// Returns a command and all commands below it.
    fn all(command: &clap::Command) -> Vec<&clap::Command> {
        let below = command.get_subcommands().flat_map(all);
        std::iter::once(command).chain(below).collect()
    }

    #[test]
    fn only_flags_decide_where_the_operator_is() {
        let root = Fleet::command();
        let arguments = all(&root).into_iter().flat_map(clap::Command::get_arguments);
        let by_environment: Vec<_> = arguments.filter(|argument| argument.get_env().is_some()).collect();
        assert!(by_environment.is_empty(), "{by_environment:?}");
    }

    #[test]
    fn help_names_no_file_of_a_checkout() {
        let mut root = Fleet::command();
        root.build();
        for command in all(&root) {
            let help = command.clone().render_long_help().to_string();
            assert!(!help.contains("docs/") && !help.contains(".md"), "{help}");
        }
    }
}
