//! `kubectl gpu-fleet status`: the whole fleet on one screen, from the statuses of the policies, whatever the number of nodes.

mod facts;
mod report;
mod text;
mod watch;

use std::time::Duration;

pub use facts::StatusError;
use k8s_openapi::jiff::Timestamp;

use crate::{
    context::{Context, OperatorNamespace, Outcome, duration},
    output::Output,
    status::{facts::Facts, report::report},
};

/// Shows what is ready, what is not, since when and what to do. Exits with 0 if all policies are ready, and with 1 if one is not. With
/// --wait, exits with 1 as soon as a policy cannot become ready by itself, and with 3 if the time is over.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Name of a policy. Defaults to all.
    policy: Option<String>,
    /// Show each change until Ctrl-C.
    #[arg(short, long, conflicts_with_all = ["wait", "nodes", "format"])]
    watch: bool,
    /// Wait until the policies are ready and their rollouts are complete.
    #[arg(long)]
    wait: bool,
    /// The longest time to wait.
    #[arg(long, value_parser = duration, default_value = "30m", value_name = "TIME")]
    timeout: Duration,
    /// Also list each node that is not ready; reads all GpuNodes.
    #[arg(long)]
    nodes: bool,
    #[command(flatten)]
    operator: OperatorNamespace,
    #[command(flatten)]
    output: Output,
}

impl Status {
    pub fn follows(&self) -> bool {
        self.watch || self.wait
    }

    pub async fn run(&self, context: &Context) -> Result<Outcome, StatusError> {
        let (client, policy) = (&context.client, self.policy.as_deref());
        if self.watch {
            let draw = |facts: &Facts| text::of(&report(facts), context.screen, Timestamp::now());
            watch::each(facts::all(client, &self.operator.name, policy), draw).await?;
            return Ok(Outcome::Good);
        }
        let (mut facts, awaited) = if self.wait {
            let changes = facts::all(client, &self.operator.name, policy);
            let (facts, outcome) = watch::until_ready(changes, self.timeout).await?;
            (facts, Some(outcome))
        } else {
            (facts::read(client, &self.operator.name, policy).await?, None)
        };
        if self.nodes {
            facts.nodes = Some(facts::nodes(client).await?);
        }
        let report = report(&facts);
        self.output.print(&report, |report| text::of(report, context.screen, Timestamp::now()))?;
        Ok(awaited.unwrap_or(if report.is_ready { Outcome::Good } else { Outcome::Bad }))
    }
}

#[cfg(test)]
mod tests;
