//! `gpu-operator plan`: reports what applying a policy would do, and changes nothing.

use std::{io, path::PathBuf};

use gpu_operator_plan::catalogue::CatalogueError;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use thiserror::Error;

use crate::{
    context::OperatorNamespace,
    objects::{Objects, ObjectsError},
    output::Output,
    policy_file::{self, FileError},
    report::report,
    text,
};

/// Reports which nodes the policies in a file would disrupt, in which order and for which pods. Exits with 0 if they would change nothing, with
/// 2 if they would change something, and with 1 on errors.
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// File with policies, as YAML or JSON; `-` reads standard input.
    #[arg(short, long, value_name = "FILE")]
    filename: String,
    /// Read the objects of the cluster from the YAML and JSON files of this folder instead of from the API server.
    #[arg(long, value_name = "DIR")]
    from: Option<PathBuf>,
    #[command(flatten)]
    operator: OperatorNamespace,
    #[command(flatten)]
    output: Output,
}

/// A reason why there is no plan.
#[derive(Debug, Error)]
pub enum PlanError {
    /// The policies cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A policy has no name.
    #[error("{0}: a policy has no name; write metadata.name")]
    NoName(String),
    /// The objects of the cluster cannot be read.
    #[error(transparent)]
    Objects(#[from] ObjectsError),
    /// The built-in catalogue is invalid.
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    /// The plan cannot be printed.
    #[error("cannot write the plan: {0}")]
    Write(#[from] io::Error),
}

impl Plan {
    /// Returns whether a client is needed.
    pub fn needs_cluster(&self) -> bool {
        self.from.is_none()
    }

    /// Prints what the policies would do, and returns whether that is anything.
    pub async fn run(&self, client: Option<Client>) -> Result<bool, PlanError> {
        let policies = policy_file::read(&self.filename)?;
        if policies.iter().any(|policy| policy.metadata.name.as_ref().is_none_or(String::is_empty)) {
            return Err(PlanError::NoName(self.filename.clone()));
        }
        let objects = match (&self.from, client) {
            (Some(folder), _) => Objects::of_folder(folder, &self.operator.name)?,
            (None, Some(client)) => Objects::of_cluster(&client, &self.operator.name).await?,
            (None, None) => return Err(io::Error::from(io::ErrorKind::NotConnected).into()),
        };
        let report = report(&objects, &policies, Timestamp::now())?;
        self.output.print(&report, text::of)?;
        Ok(report.policies.iter().any(|forecast| !forecast.is_empty()))
    }
}
