//! `explain pod`: reads a pod and prints why it does not get its GPUs.

use super::{
    error::ExplainError,
    pod_facts,
    pod_report::{self, PodReport},
    pod_text,
};
use crate::{
    context::{Context, Outcome},
    output::Output,
};

pub async fn explain(namespace: &str, name: &str, output: Output, context: &Context) -> Result<Outcome, ExplainError> {
    let facts = pod_facts::read(&context.client, namespace, name).await?;
    let report = pod_report::report(&facts, context.now);
    output.print(&report, |report| pod_text::of(report, context.screen, context.now))?;
    Ok(outcome(&report))
}

/// Returns whether the pod is as it should be.
pub fn outcome(report: &PodReport) -> Outcome {
    if report.findings.is_empty() { Outcome::Good } else { Outcome::Bad }
}
