//! `kubectl gpu-fleet`: the command line of the kubectl plugin.

use std::{io, process::ExitCode};

use clap::{Parser, Subcommand};
use k8s_openapi::jiff::Timestamp;
use thiserror::Error;

use crate::{
    bundle::{BundleError, SupportBundle},
    check::{CheckError, RunChecks},
    context::{COMMAND, Connection, ConnectionError, Context, Outcome},
    explain::{Explain, ExplainError},
    images::{Images, ImagesError},
    import::{Import, ImportError},
    output::{Output, Screen},
    plan::{Plan, PlanError},
    read::ReadError,
    report::Report,
    status::Status,
};

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
    #[command(subcommand)]
    Explain(Explain),
    /// Report which nodes the policies in a file would disrupt, in which order and for which pods; changes nothing.
    Plan(Plan),
    /// List the images that the nodes of policies may pull, one per line; needs no cluster.
    Images(Images),
    Import(Import),
    /// Check whether the installation works or, with --pre, whether the cluster is ready for it.
    Check(RunChecks),
    SupportBundle(SupportBundle),
}

/// A reason why a command cannot do what it should.
#[derive(Debug, Error)]
pub enum FleetError {
    /// There is no connection to a cluster.
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Explain(#[from] ExplainError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Images(#[from] ImagesError),
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

impl Fleet {
    pub async fn run(self) -> Result<ExitCode, FleetError> {
        let outcome = match &self.command {
            Command::Status(status) => print(status.output, &status.report(&self.context().await?).await?)?,
            Command::Images(images) => {
                images.run()?;
                Outcome::Good
            }
            Command::Explain(explain) => print(explain.output(), &explain.report(self.context()).await?)?,
            Command::Check(check) => check.run(&self.context().await?).await?,
            Command::SupportBundle(bundle) => bundle.run(&self.context().await?).await?,
            Command::Import(import) => {
                let client = if import.needs_cluster() { Some(self.context().await?.client) } else { None };
                import.run(client).await?;
                Outcome::Good
            }
            Command::Plan(plan) => {
                let client = if plan.needs_cluster() { Some(self.context().await?.client) } else { None };
                if plan.run(client).await? { Outcome::Changes } else { Outcome::Good }
            }
        };
        Ok(ExitCode::from(outcome.code()))
    }

    async fn context(&self) -> Result<Context, ConnectionError> {
        let (client, namespace) = self.connection.client().await?;
        Ok(Context { client, namespace, screen: Screen::of_stdout(), now: Timestamp::now() })
    }
}

fn print(output: Output, report: &Report) -> io::Result<Outcome> {
    output.print(report, |report| report.text(Screen::of_stdout(), Timestamp::now()))?;
    Ok(report.outcome())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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
    fn help_has_at_most_80_columns() {
        let mut root = Fleet::command();
        root.build();
        for command in all(&root) {
            crate::testing::assert_narrow(&command.clone().render_long_help().to_string());
        }
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
