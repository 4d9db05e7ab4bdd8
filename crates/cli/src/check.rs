//! `kubectl gpu-fleet check`: whether the cluster is ready for the chart, or whether the installation is whole.

pub mod list;

mod cluster;
mod facts;
mod gather;
mod installation;
mod namespace;
mod report;

use std::io;

use thiserror::Error;

use crate::{
    check::report::Report,
    context::{Context, OperatorNamespace, Outcome},
    output::Output,
    read::ReadError,
};

#[derive(Debug, Error)]
pub enum CheckError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

/// Checks whether the installation is whole, or, before it, whether the cluster is ready for it. Changes nothing. Exits with 1 if a check
/// fails; warnings and skipped checks are no failures. The state of policies and nodes is shown by `status`.
#[derive(Debug, clap::Args)]
pub struct RunChecks {
    /// Make the checks for a cluster in which the chart is not installed yet.
    #[arg(long)]
    pre: bool,
    #[command(flatten)]
    operator: OperatorNamespace,
    #[command(flatten)]
    output: Output,
}

impl RunChecks {
    pub async fn run(&self, context: &Context) -> Result<Outcome, CheckError> {
        let report = self.report(context).await?;
        self.output.print(&report, |report| report::text(report, context.screen))?;
        Ok(report.outcome())
    }

    async fn report(&self, context: &Context) -> Result<Report, CheckError> {
        Ok(report::report(&gather::gather(&context.client, &self.operator.name, self.pre).await?))
    }
}

#[cfg(test)]
mod tests;
