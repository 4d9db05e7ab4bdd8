//! The errors of the commands.

use std::net::SocketAddr;

use crate::{
    gates::shown_root::MountError,
    nvml::child::ChildError,
    operands::{inject::InjectError, unpack::UnpackError, write_file::WriteFileError},
    process::ExecError,
    report::publish::PublishError,
};

/// The program could not start, or its child could not continue.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The async runtime, the signal handlers or the path of this program is not available.
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    /// No client for the API server can be created.
    #[error("cannot reach the API server")]
    Client(#[from] PublishError),
    /// The address cannot be listened on.
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
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
    /// The NVML child failed.
    #[error(transparent)]
    Child(#[from] ChildError),
}
