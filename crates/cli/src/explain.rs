//! `kubectl gpu-fleet explain`: why a node or a pod is in its state, from the facts to what to do.

mod checks;
mod discovery;
mod error;
mod gpus;
mod node;
mod node_facts;
mod node_report;
mod node_text;
mod pod;
mod pod_facts;
mod pod_report;
mod pod_text;
mod reason;
pub mod reasons;
mod stages;
mod target;

use crate::{
    context::{Context, OperatorNamespace, Outcome},
    output::Output,
    screen::Screen,
};
use target::Target;

pub use error::ExplainError;

/// Explain the state of a node or a pod, or a reason, with what to do. Exits with 1 if the node is not ready, or if a pod has a mistake.
#[derive(Debug, clap::Args)]
#[command(override_usage = "kubectl gpu-fleet explain [OPTIONS] node NAME
       kubectl gpu-fleet explain [OPTIONS] pod [NAMESPACE/]NAME
       kubectl gpu-fleet explain [OPTIONS] reason REASON")]
pub struct Explain {
    /// What to explain: `node NAME`, `pod [NAMESPACE/]NAME` or `reason REASON`; also as `node/NAME`. A reason needs no cluster.
    #[arg(required = true, num_args = 1..=2, value_name = "KIND NAME")]
    target: Vec<String>,
    #[command(flatten)]
    operator: OperatorNamespace,
    #[command(flatten)]
    output: Output,
}

impl Explain {
    /// Explains a reason, which needs no cluster. Returns `None` if the target is a node or a pod.
    pub fn without_cluster(&self, screen: Screen) -> Result<Option<Outcome>, ExplainError> {
        match Target::parse(&self.target)? {
            Target::Reason(name) => {
                let report = reason::report(target::topic(&name)?);
                self.output.print(&report, |report| reason::text(report, screen))?;
                Ok(Some(Outcome::Good))
            }
            Target::Node(_) | Target::Pod { .. } => Ok(None),
        }
    }

    /// Explains a node or a pod.
    pub async fn run(&self, context: &Context) -> Result<Outcome, ExplainError> {
        match Target::parse(&self.target)? {
            Target::Node(name) => node::explain(&name, &self.operator.name, self.output, context).await,
            Target::Pod { namespace, name } => {
                let namespace = namespace.as_ref().unwrap_or(&context.namespace);
                pod::explain(namespace, &name, self.output, context).await
            }
            Target::Reason(_) => Ok(self.without_cluster(context.screen)?.unwrap_or(Outcome::Good)),
        }
    }
}

#[cfg(test)]
mod tests;
