//! `kubectl gpu-fleet`: the command line of the kubectl plugin.

use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use gpu_operator_plan::catalogue::CatalogueError;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use thiserror::Error;

use crate::{
    bundle::{BundleError, SupportBundle},
    check::RunChecks,
    completion,
    connection::{Connection, ConnectionError},
    explain::{Explain, TargetError},
    images::{Images, ImagesError},
    plan::{Plan, PlanError},
    read::ReadError,
    rollout::{Rollout, RolloutError},
    screen::Screen,
    status::Status,
};

/// The name of the program: kubectl finds it on the PATH.
const PROGRAM: &str = "kubectl-gpu_fleet";
/// The name of the command, as users write it.
pub const COMMAND: &str = "kubectl gpu-fleet";

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

/// The namespace of the operator.
#[derive(clap::Args, Clone, Debug)]
pub struct OperatorNamespace {
    /// Namespace of the operator.
    #[arg(long = "operator-namespace", env = "POD_NAMESPACE", default_value = "gpu-operator", value_name = "NAME")]
    pub name: String,
}

/// What a command needs: the cluster, the time and the terminal.
#[derive(Clone)]
pub struct Context {
    /// The client of the API server.
    pub client: Client,
    /// The namespace in which pods are looked for, unless they are named with another one.
    pub namespace: String,
    /// What standard output can show.
    pub screen: Screen,
    /// The time at which the command was started.
    pub now: Timestamp,
}

/// How a command ended, if not by an error. Each is an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded, and what it reports is as it should be.
    Good,
    /// What it reports is not as it should be.
    Bad,
    /// What `plan` reports is a change.
    Changes,
    /// What was waited for has not happened in time.
    TimedOut,
}

impl Outcome {
    /// Returns the exit code.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Bad => 1,
            Self::Changes => 2,
            Self::TimedOut => 3,
        }
    }
}

/// A reason why a command cannot do what it should.
#[derive(Debug, Error)]
pub enum FleetError {
    /// There is no connection to a cluster.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    /// The API server does not answer a request, or rejects it.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The images cannot be listed.
    #[error(transparent)]
    Images(#[from] ImagesError),
    /// It is not known what policies would do.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No check is made.
    #[error("no check of these categories is made before the installation; omit --pre, or --category")]
    NoChecks,
    /// A policy's rollout cannot be changed.
    #[error(transparent)]
    Rollout(#[from] RolloutError),
    /// There is no support bundle.
    #[error(transparent)]
    Bundle(#[from] BundleError),
    /// The target of `explain` is unknown.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// An object does not exist.
    #[error("there is no {what}; to list what exists: {list}")]
    NotFound {
        /// The kind and the name of the object.
        what: String,
        /// The command that lists the existing ones.
        list: String,
    },
    /// The built-in catalogue is invalid.
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

impl Fleet {
    /// Runs the command.
    ///
    /// # Errors
    /// Returns why it cannot do what it should.
    pub async fn run(self) -> Result<ExitCode, FleetError> {
        let outcome = match &self.command {
            Command::Status(status) => status.run(&self.context().await?).await?,
            Command::Images(images) => {
                images.run()?;
                Outcome::Good
            }
            Command::Explain(explain) => match explain.without_cluster(Screen::of_stdout())? {
                Some(outcome) => outcome,
                None => explain.run(&self.context().await?).await?,
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
            Command::Check(check) => check.run(&self.context().await?).await?,
            Command::Rollout(rollout) => rollout.run(&self.context().await?).await?,
            Command::SupportBundle(bundle) => bundle.run(&self.context().await?).await?,
            Command::Plan(plan) => {
                let client = if plan.needs_cluster() { Some(self.context().await?.client) } else { None };
                if plan.run(client).await? { Outcome::Changes } else { Outcome::Good }
            }
        };
        Ok(ExitCode::from(outcome.code()))
    }

    async fn context(&self) -> Result<Context, FleetError> {
        let (client, namespace) = self.connection.client().await?;
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
}
