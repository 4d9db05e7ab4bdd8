//! Why nothing is explained.

use std::io;

use gpu_operator_plan::catalogue::CatalogueError;
use thiserror::Error;

use super::target::TargetError;
use crate::read::ReadError;

/// A reason why nothing is explained.
#[derive(Debug, Error)]
pub enum ExplainError {
    /// The target is unknown.
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
    /// The API server does not answer a request, or rejects it.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The built-in catalogue is invalid.
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    /// The explanation cannot be printed.
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}
