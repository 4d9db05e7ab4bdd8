//! The errors of the commands.

use std::net::SocketAddr;

use gpu_host::nvml::child::ChildError;
use node_tools::cli::ToolError;

use crate::report::publish::PublishError;

/// The program could not start, or its child could not continue.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    #[error("cannot start")]
    Start(#[from] std::io::Error),
    #[error("cannot reach the API server")]
    Client(#[from] PublishError),
    #[error("cannot listen on {0}")]
    Listen(SocketAddr, #[source] std::io::Error),
    #[error(transparent)]
    Child(#[from] ChildError),
    #[error(transparent)]
    Tool(#[from] ToolError),
}
