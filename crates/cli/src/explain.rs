//! `kubectl gpu-fleet explain`: why a node or a pod is in its state, from the facts to what to do.

mod discovery;
mod node_facts;
mod node_report;
mod pod_report;
mod pod_text;
pub mod reasons;
mod stages;
mod target;

use gpu_operator_plan::catalogue::Catalogue;
use target::Target;

use crate::{
    context::{Context, OperatorNamespace, Outcome},
    output::{Output, Screen},
};

pub use target::ExplainError;

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
    /// Returns `None` if the target is a node or a pod, which need a cluster.
    pub fn without_cluster(&self, screen: Screen) -> Result<Option<Outcome>, ExplainError> {
        match Target::parse(&self.target)? {
            Target::Reason(name) => {
                let report = reasons::report(target::topic(&name)?);
                self.output.print(&report, |report| reasons::text(report, screen))?;
                Ok(Some(Outcome::Good))
            }
            Target::Node(_) | Target::Pod { .. } => Ok(None),
        }
    }

    pub async fn run(&self, context: &Context) -> Result<Outcome, ExplainError> {
        match Target::parse(&self.target)? {
            Target::Node(name) => explain_node(&name, &self.operator.name, self.output, context).await,
            Target::Pod { namespace, name } => {
                let namespace = namespace.as_ref().unwrap_or(&context.namespace);
                explain_pod(namespace, &name, self.output, context).await
            }
            Target::Reason(_) => Ok(self.without_cluster(context.screen)?.unwrap_or(Outcome::Good)),
        }
    }
}

async fn explain_node(name: &str, namespace: &str, output: Output, context: &Context) -> Result<Outcome, ExplainError> {
    let facts = node_facts::read(&context.client, name, namespace).await?;
    let report = node_report::report(&facts, &Catalogue::builtin()?, context.now);
    output.print(&report, |report| node_report::text(report, context.screen, context.now))?;
    Ok(report.outcome())
}

async fn explain_pod(namespace: &str, name: &str, output: Output, context: &Context) -> Result<Outcome, ExplainError> {
    let facts = pod_report::read(&context.client, namespace, name).await?;
    let report = pod_report::report(&facts, context.now);
    output.print(&report, |report| pod_text::text(report, context.screen, context.now))?;
    Ok(report.outcome())
}

#[cfg(test)]
mod tests;
