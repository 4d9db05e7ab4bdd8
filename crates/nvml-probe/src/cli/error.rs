//! The errors of the commands.

use std::net::SocketAddr;

use gpu_host::nvml::child::ChildError;
use node_tools::cli::ToolError;

use crate::report::publish::PublishError;

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
    /// The NVML child failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// A tool failed.
    #[error(transparent)]
    Tool(#[from] ToolError),
}
