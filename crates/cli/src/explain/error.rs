//! Why nothing is explained.

use std::io;

use gpu_operator_plan::catalogue::CatalogueError;
use thiserror::Error;

use super::target::TargetError;
use crate::read::ReadError;

/// A reason why nothing is explained.
#[derive(Debug, Error)]
pub enum ExplainError {
    #[error(transparent)]
    Target(#[from] TargetError),
    #[error("there is no {what}; to list what exists: {list}")]
    NotFound {
        /// The kind and the name of the object.
        what: String,
        /// The command that lists the existing ones.
        list: String,
    },
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}
