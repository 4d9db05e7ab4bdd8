//! The errors of the subcommands.

use gpu_host::process::ExecError;

use crate::{
    gates::shown_root::MountError,
    operands::{inject::InjectError, unpack::UnpackError, write_file::WriteFileError},
};

/// A tool could not start.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    #[error(transparent)]
    Prepare(#[from] WriteFileError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Inject(#[from] InjectError),
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error(transparent)]
    Exec(#[from] ExecError),
}
