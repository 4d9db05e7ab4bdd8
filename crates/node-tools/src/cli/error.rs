//! The errors of the subcommands.

use gpu_host::process::ExecError;

use crate::{
    gates::shown_root::MountError,
    operands::{inject::InjectError, unpack::UnpackError, write_file::WriteFileError},
};

/// A tool could not start.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The async runtime, the signal handlers or the path of this program is not available.
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    /// A file for the next container cannot be written.
    #[error(transparent)]
    Prepare(#[from] WriteFileError),
    /// This program cannot be unpacked.
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    /// The driver cannot be made available in this container.
    #[error(transparent)]
    Inject(#[from] InjectError),
    /// A mount of the driver's container cannot be changed.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// Another program cannot be started.
    #[error(transparent)]
    Exec(#[from] ExecError),
}
