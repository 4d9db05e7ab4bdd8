//! What commands have in common: where they run, and how they end.

use k8s_openapi::jiff::Timestamp;
use kube::Client;

use crate::screen::Screen;

/// The name of the command, as users write it.
pub const COMMAND: &str = "kubectl gpu-fleet";

/// The namespace of the operator.
#[derive(clap::Args, Clone, Debug)]
pub struct OperatorNamespace {
    /// Namespace of the operator.
    // No environment variable: in a pod of another namespace, POD_NAMESPACE would be that one.
    #[arg(long = "operator-namespace", default_value = "gpu-operator", value_name = "NAME")]
    pub name: String,
}

/// What a command needs: the cluster, the time and the terminal.
#[derive(Clone)]
pub struct Context {
    /// The client of the API server.
    pub client: Client,
    /// The namespace in which pods are looked for, unless they are named with another one.
    pub namespace: String,
    /// What standard output can show.
    pub screen: Screen,
    /// The time at which the command was started.
    pub now: Timestamp,
}

/// How a command ended, if not by an error. Each is an exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It succeeded, and what it reports is as it should be.
    Good,
    /// What it reports is not as it should be.
    Bad,
    /// What `plan` reports is a change.
    Changes,
    /// What was waited for has not happened in time.
    TimedOut,
}

impl Outcome {
    /// Returns the exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Good => 0,
            Self::Bad => 1,
            Self::Changes => 2,
            Self::TimedOut => 3,
        }
    }
}
