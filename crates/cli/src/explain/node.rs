//! `explain node`: reads a node and prints why it is in its state.

use gpu_operator_plan::catalogue::Catalogue;

use super::{
    error::ExplainError,
    node_facts,
    node_report::{self, NodeReport},
    node_text,
};
use crate::{
    context::{Context, Outcome},
    output::Output,
};

pub async fn explain(name: &str, namespace: &str, output: Output, context: &Context) -> Result<Outcome, ExplainError> {
    let facts = node_facts::read(&context.client, name, namespace).await?;
    let report = node_report::report(&facts, &Catalogue::builtin()?, context.now);
    output.print(&report, |report| node_text::of(report, context.screen, context.now))?;
    Ok(outcome(&report))
}

/// Returns whether the node is as it should be.
pub fn outcome(report: &NodeReport) -> Outcome {
    if report.ready { Outcome::Good } else { Outcome::Bad }
}
