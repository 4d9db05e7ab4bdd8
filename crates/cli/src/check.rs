//! `kubectl gpu-fleet check`: whether the cluster is ready for the chart, or whether the installation works.

pub mod code;
pub mod reference;

mod cluster;
mod facts;
mod fleet;
mod gather;
mod installation;
mod namespace;
mod report;

use std::io;

use gpu_operator_plan::catalogue::{Catalogue, CatalogueError};
use thiserror::Error;

use crate::{
    check::{code::Category, report::Report},
    context::{Context, OperatorNamespace, Outcome},
    output::Output,
    read::ReadError,
};

#[derive(Debug, Error)]
pub enum CheckError {
    #[error("no check of these categories is made before the installation; omit --pre, or --category")]
    NoChecks,
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}

/// Checks whether the installation works, or, before it, whether the cluster is ready for it. Changes nothing. Exits with 1 if a check fails;
/// warnings and skipped checks are no failures.
#[derive(Debug, clap::Args)]
pub struct RunChecks {
    /// Make the checks for a cluster in which the chart is not installed yet.
    #[arg(long)]
    pre: bool,
    /// Make only the checks of this category; may be repeated.
    #[arg(long = "category", value_name = "NAME", value_enum)]
    categories: Vec<Category>,
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
        let catalogue = Catalogue::builtin()?;
        let facts = gather::gather(&context.client, &self.operator.name, self.pre, catalogue).await?;
        let report = report::report(&facts, self.pre, &self.categories);
        if report.categories.is_empty() { Err(CheckError::NoChecks) } else { Ok(report) }
    }
}

#[cfg(test)]
mod tests;
