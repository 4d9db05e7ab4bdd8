//! `kubectl gpu-fleet explain`: why a node or a pod is in its state, from the facts to what to do.

mod discovery;
mod node_facts;
mod node_report;
mod pod_report;
mod reason;
mod stages;

use gpu_operator_crd::reason::Explanation;
use gpu_operator_plan::catalogue::{Catalogue, CatalogueError};
use thiserror::Error;

use crate::{
    context::{ConnectionError, Context, OperatorNamespace},
    output::Output,
    read::ReadError,
    report::Report,
};

/// Explain the state of a node or a pod, or a reason, with what to do. Exits with 1 if the node is not ready, or if a pod has a mistake.
#[derive(Debug, clap::Subcommand)]
pub enum Explain {
    /// Explain why a node is ready or not.
    Node {
        /// Name of the node.
        node: String,
        #[command(flatten)]
        operator: OperatorNamespace,
        #[command(flatten)]
        output: Output,
    },
    /// Explain why a pod does not get its GPUs.
    Pod {
        /// Name of the pod.
        pod: String,
        #[command(flatten)]
        output: Output,
    },
    /// Explain a reason; needs no cluster.
    Reason {
        /// Name of the reason, in upper or lower case.
        #[arg(value_parser = reason::named)]
        reason: Explanation,
        #[command(flatten)]
        output: Output,
    },
}

#[derive(Debug, Error)]
pub enum ExplainError {
    #[error("there is no {what}; to list what exists: {list}")]
    NotFound {
        what: String,
        /// The command that lists the existing ones.
        list: String,
    },
    #[error(transparent)]
    Connection(#[from] ConnectionError),
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error("failed to read the catalogue: {0}")]
    Catalogue(#[from] CatalogueError),
}

impl Explain {
    pub fn output(&self) -> Output {
        match self {
            Self::Node { output, .. } | Self::Pod { output, .. } | Self::Reason { output, .. } => *output,
        }
    }

    /// Connects only for what needs a cluster.
    pub async fn report(
        &self,
        connect: impl Future<Output = Result<Context, ConnectionError>>,
    ) -> Result<Report, ExplainError> {
        let missing = |what, list: &str| ExplainError::NotFound { what, list: list.to_owned() };
        match self {
            Self::Node { node: name, operator, .. } => {
                let Context { client, now, .. } = connect.await?;
                let facts = node_facts::read(&client, name, &operator.name).await?;
                let facts = facts.ok_or_else(|| missing(format!("node {name}"), "kubectl get nodes,gpunodes"))?;
                Ok(node_report::report(&facts, &Catalogue::builtin()?, now))
            }
            Self::Pod { pod: name, .. } => {
                let Context { client, namespace, now, .. } = connect.await?;
                let list = format!("kubectl get pods --namespace {namespace}");
                let facts = pod_report::read(&client, &namespace, name).await?;
                let facts = facts.ok_or_else(|| missing(format!("pod {namespace}/{name}"), &list))?;
                Ok(pod_report::report(&facts, now))
            }
            Self::Reason { reason, .. } => Ok(reason::report(reason)),
        }
    }
}

#[cfg(test)]
mod tests;
