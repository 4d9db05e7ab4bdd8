//! Why `status` shows nothing.

use std::io;

use thiserror::Error;

use crate::read::ReadError;

/// A reason why the state is not known.
#[derive(Debug, Error)]
pub enum StatusError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("cannot write the output: {0}")]
    Write(#[from] io::Error),
}
