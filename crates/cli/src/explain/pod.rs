//! `explain pod`: reads a pod and prints why it does not get its GPUs.

use super::{pod_facts, pod_report, pod_text};
use crate::{
    fleet::{Context, FleetError, Outcome},
    output::Output,
};

/// Explains a pod.
///
/// # Errors
/// Returns an error if the pod does not exist or cannot be read.
pub async fn explain(namespace: &str, name: &str, output: Output, context: &Context) -> Result<Outcome, FleetError> {
    let facts = pod_facts::read(&context.client, namespace, name).await?;
    let report = pod_report::report(&facts, context.now);
    output.print(&report, |report| pod_text::of(report, context.screen, context.now))?;
    Ok(if report.findings.is_empty() { Outcome::Good } else { Outcome::Bad })
}
