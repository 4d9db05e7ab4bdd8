//! `kubectl gpu-fleet status`: the whole fleet on one screen, from the statuses of the policies, whatever the number of nodes.

use std::cmp::Reverse;

use gpu_operator_crd::{
    ClusterGpuPolicy, ConditionType, NodeName, keys,
    policy_status::{Attention, ClusterGpuPolicyStatus, GpuTotals, NodeCounts, PoolStatus},
    reason::Reason,
};
use gpu_operator_plan::output::headline;
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition},
    jiff::Timestamp,
};
use kube::{Client, ResourceExt, api::ListParams};

use crate::{
    context::{COMMAND, Context, OperatorNamespace},
    output::{Output, Tone, age},
    read::{self, ReadError},
    report::{Line, Look, Report},
};

/// The number of pools that are ready and have lines of their own.
const READY_POOLS: usize = 8;

/// Shows what is ready, what is not, since when and what to do. Exits with 0 if all policies are ready, and with 1 if one is not.
#[derive(Debug, clap::Args)]
pub struct Status {
    /// Name of a policy. Defaults to all.
    policy: Option<String>,
    #[command(flatten)]
    operator: OperatorNamespace,
    #[command(flatten)]
    pub output: Output,
}

impl Status {
    pub async fn report(&self, context: &Context) -> Result<Report, ReadError> {
        let facts = read(&context.client, &self.operator.name, self.policy.as_deref()).await?;
        Ok(report(&facts, context.now))
    }
}

#[derive(Clone, Debug)]
struct Facts {
    policies: Vec<ClusterGpuPolicy>,
    /// The names of policies that cannot be parsed.
    unreadable: Vec<String>,
    namespace: String,
    /// The operator's Deployment, or why it is not known.
    operator: Result<Option<Deployment>, String>,
}

/// Reads the facts: two requests, however many nodes there are, unless there are more policies than fit in a page.
async fn read(client: &Client, namespace: &str, policy: Option<&str>) -> Result<Facts, ReadError> {
    let (policies, unreadable) = if let Some(name) = policy {
        (read::get(client, None, name).await?.into_iter().collect(), Vec::new())
    } else {
        let listed = read::list(client, None, ListParams::default()).await?;
        (listed.items, listed.unreadable)
    };
    let operator = read::get(client, Some(namespace), keys::OPERATOR_NAME).await.map_err(|error| error.to_string());
    Ok(Facts { policies, unreadable, namespace: namespace.to_owned(), operator })
}

fn report(facts: &Facts, now: Timestamp) -> Report {
    let mut policies: Vec<_> = facts.policies.iter().map(|found| policy(found, now)).collect();
    policies.sort_by_cached_key(|policy| (policy.urgency, policy.line.name.clone()));
    let is_good = facts.unreadable.is_empty() && !policies.is_empty() && policies.iter().all(|policy| policy.is_ready);
    let next = policies.iter().find_map(|policy| policy.next.clone());
    let mut lines: Vec<Line> = operator(facts).into_iter().collect();
    lines.extend(policies.into_iter().map(|policy| policy.line));
    lines.extend(facts.unreadable.iter().map(|name| {
        let why =
            format!("policy {name} cannot be parsed: it is of a later version than this command; install that version");
        Line { state: Some(Tone::Bad), ..Line::text(why) }
    }));
    if facts.policies.is_empty() && facts.unreadable.is_empty() {
        lines.push(Line::text(
            "No ClusterGpuPolicy exists. Nodes get a GPU stack once one is applied, for example with spec: {}.",
        ));
    }
    if let Err(error) = &facts.operator {
        lines.push(Line::label("Note", format!("it is not known whether the operator runs: {error}")));
    }
    lines.extend(next.map(|next| Line::label("Do", format!("{COMMAND} explain {next}"))));
    Report { is_good, sections: vec![lines] }
}

/// Returns a line if the operator does not run, so that the statuses may be outdated.
fn operator(facts: &Facts) -> Option<Line> {
    let line = match facts.operator.as_ref().ok()? {
        None => Line::text(format!(
            "There is no operator in namespace {}: what follows is what it wrote last. Install the chart, or set --operator-namespace.",
            facts.namespace
        )),
        Some(deployment) => {
            let mut conditions = deployment.status.iter().flat_map(|status| status.conditions.iter().flatten());
            let is_available = |condition: &&DeploymentCondition| condition.type_ == "Available";
            let condition = conditions.find(is_available);
            if condition.is_some_and(|condition| condition.status == "True") {
                return None;
            }
            let since = condition.and_then(|condition| condition.last_transition_time.clone());
            Line::named("The operator has not been available", "what follows is what it wrote last.").since(since)
        }
    };
    Some(Line { state: Some(Tone::Bad), ..line })
}

struct Policy {
    /// The rank of its state: those that need attention first are the lowest.
    urgency: usize,
    /// Whether condition `Ready` is true, for the policy as it was last changed.
    is_ready: bool,
    /// What to explain next, as arguments of `explain`.
    next: Option<String>,
    line: Line,
}

fn policy(policy: &ClusterGpuPolicy, now: Timestamp) -> Policy {
    let status = policy.status.clone().unwrap_or_default();
    let headline = headline::of(&status.conditions);
    let generation = status.observed_generation.filter(|observed| Some(*observed) == policy.metadata.generation);
    let condition = headline.condition.filter(|_| generation.is_some());
    let state = condition.map_or("Unknown", |_| headline.status);
    let tone = match state {
        "Ready" => Tone::Good,
        "RollingOut" | "Degraded" | "Unknown" => Tone::Warning,
        _ => Tone::Bad,
    };
    let mut lines = Vec::new();
    match condition {
        None => lines.push(Line::text("The operator has not observed the last change of the policy yet.")),
        Some(_) if state == "Ready" => {}
        Some(condition) => {
            let message = Line::named(&condition.reason, &condition.message);
            let since = Some(condition.last_transition_time.clone());
            lines.push(Line { look: Look::Clipped, ..message.since(since) });
        }
    }
    // The message of a rollout says it.
    if policy.spec.rollout.paused == Some(true) && state != "RollingOut" {
        lines.push(Line::text("Rollouts are paused: spec.rollout.paused is true."));
    }
    lines.extend(status.overlaps.iter().map(|overlap| {
        let (count, other, by) = (overlap.nodes, &overlap.policy, &overlap.governed_by);
        let governs = if other == by { "and governs them" } else { "which this policy governs" };
        Line::text(format!("Policy {other} selects {count} of the same nodes, {governs}."))
    }));
    let mut all: Vec<_> = status.pools.iter().map(|of| (state_of(of, &status), of)).collect();
    all.sort_by_key(|(tone, pool)| (Reverse(*tone), &pool.name));
    let first = all.iter().find_map(|(_, pool)| attention(pool, &status).next());
    let next = first.map(|attention| format!("node {}", attention.node));
    let next = next.or_else(|| condition.map(|condition| format!("reason {}", condition.reason)));
    lines.extend(pools(&all, &status, now));
    let ready = status.conditions.iter().find(|condition| condition.type_ == ConditionType::Ready.as_str());
    let ranks = ["Rejected", "Stalled", "NotReady", "Unknown", "RollingOut", "Degraded", "Ready"];
    let cells = [state.to_owned(), nodes(&status.nodes)].into_iter().chain(gpus(&status.gpus)).collect();
    let line = Line { state: Some(tone), name: policy.name_any(), cells, lines, look: Look::Row, ..Line::default() };
    Policy {
        urgency: ranks.iter().position(|known| *known == state).unwrap_or_default(),
        is_ready: condition.is_some() && ready.is_some_and(|ready| ready.status == "True"),
        next: next.filter(|_| !matches!(state, "Ready" | "Unknown" | "RollingOut")),
        line,
    }
}

/// Returns the nodes of a pool among the policy's nodes that most need attention.
fn attention<'s>(pool: &PoolStatus, status: &'s ClusterGpuPolicyStatus) -> impl Iterator<Item = &'s Attention> {
    status.attention.iter().filter(move |attention| attention.pool == pool.name)
}

/// Returns whether a pool cannot proceed or one of its nodes has failed, or nodes are not ready or at another revision.
fn state_of(pool: &PoolStatus, status: &ClusterGpuPolicyStatus) -> Tone {
    let nodes = &pool.nodes;
    let mut rollouts = status.rollout.pools.iter().filter(|rollout| rollout.pool == pool.name);
    let has_failed = nodes.failed > 0 || rollouts.any(|rollout| !rollout.failed.is_empty());
    if has_failed || pool.reason().is_some_and(Reason::is_failure) {
        Tone::Bad
    } else if nodes.ready + nodes.excluded < nodes.total || nodes.outdated > 0 || nodes.leaving > 0 {
        Tone::Warning
    } else {
        Tone::Good
    }
}

/// Returns the lines of pools, of which those that are ready come last and are at most [`READY_POOLS`].
fn pools(all: &[(Tone, &PoolStatus)], status: &ClusterGpuPolicyStatus, now: Timestamp) -> Vec<Line> {
    let is_ready =
        |(tone, pool): &&(Tone, &PoolStatus)| *tone == Tone::Good && attention(pool, status).next().is_none();
    let (ready, others): (Vec<&_>, Vec<&_>) = all.iter().partition(is_ready);
    let (shown, rest) = ready.split_at(ready.len().min(READY_POOLS));
    let mut lines: Vec<_> =
        others.into_iter().chain(shown.iter().copied()).map(|(tone, of)| pool(*tone, of, status, now)).collect();
    if !rest.is_empty() {
        let sum = |count: fn(&NodeCounts) -> u32| rest.iter().map(|(_, pool)| count(&pool.nodes)).sum::<u32>();
        let cells = vec![format!("{}/{} ready", sum(|nodes| nodes.ready), sum(|nodes| nodes.total))];
        let name = format!("{} more pools", rest.len());
        lines.push(Line { state: Some(Tone::Good), name, cells, look: Look::Row, ..Line::default() });
    }
    lines
}

fn pool(tone: Tone, pool: &PoolStatus, status: &ClusterGpuPolicyStatus, now: Timestamp) -> Line {
    let NodeCounts { total, ready, outdated, excluded, .. } = pool.nodes;
    let none = if pool.reason.is_some() { "no driver" } else { "host driver" };
    let driver = pool.driver_version.clone().unwrap_or_else(|| none.to_owned());
    let mut cells = vec![driver, format!("{ready}/{total} ready")];
    cells.extend(gpus(&pool.gpus));
    if outdated > 0 {
        let eligible = total.saturating_sub(excluded);
        cells.push(format!("{}/{eligible} updated", eligible.saturating_sub(outdated)));
    }
    if excluded > 0 {
        cells.push(format!("{excluded} excluded"));
    }
    let lines = below(pool, status, now);
    Line { state: Some(tone), name: pool.name.to_string(), cells, lines, look: Look::Aligned, ..Line::default() }
}

/// Returns the lines below a pool: why it does not proceed, what is being updated, and its nodes that need attention.
fn below(pool: &PoolStatus, status: &ClusterGpuPolicyStatus, now: Timestamp) -> Vec<Line> {
    let mut lines = Vec::new();
    if let Some(reason) = &pool.reason {
        lines.push(Line { look: Look::Clipped, ..Line::named(reason.as_str(), &pool.message) });
    }
    let rollout = status.rollout.pools.iter().find(|rollout| rollout.pool == pool.name).cloned().unwrap_or_default();
    if !rollout.rolled_back.is_empty() {
        lines.push(Line::named("going back to the previous revision", rollout.rolled_back));
    }
    let slots = status.rollout.slots.iter().filter(|slot| slot.pool == pool.name);
    let updating: Vec<_> = slots
        .map(|slot| match &slot.since {
            Some(since) => format!("{} ({})", slot.node, age(since.0, now)),
            None => slot.node.to_string(),
        })
        .collect();
    if !updating.is_empty() {
        lines.push(Line::text(format!("updating {}", updating.join(", "))));
    }
    if !rollout.failed.is_empty() {
        let nodes: Vec<_> = rollout.failed.iter().map(NodeName::as_str).collect();
        lines.push(Line::named("failed updates", nodes.join(", ")));
    }
    // The policy has a line about all of its overlaps.
    let own = attention(pool, status).filter(|attention| attention.reason != Reason::PolicyOverlap);
    lines.extend(own.map(|attention| {
        let is_failure = attention.reason().is_some_and(Reason::is_failure);
        let tone = if is_failure { Tone::Bad } else { Tone::Warning };
        let line = Line::named(format!("{} {}", attention.node, attention.reason), &attention.message);
        Line { state: Some(tone), look: Look::Clipped, ..line.since(attention.since.clone()) }
    }));
    lines
}

fn nodes(counts: &NodeCounts) -> String {
    let NodeCounts { total, ready, excluded, opted_out, leaving, .. } = *counts;
    let others = [(excluded, "excluded"), (opted_out, "opted out"), (leaving, "leaving")];
    let others = others.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
    [format!("{ready}/{total} nodes")].into_iter().chain(others).collect::<Vec<_>>().join(", ")
}

fn gpus(totals: &GpuTotals) -> impl Iterator<Item = String> + use<> {
    let GpuTotals { expected, allocatable, unhealthy, degraded, unknown } = *totals;
    let problems = [(unhealthy, "unhealthy"), (degraded, "degraded"), (unknown, "of unknown health")];
    let problems = problems.into_iter().filter(|(count, _)| *count > 0);
    [format!("{allocatable}/{expected} GPUs")]
        .into_iter()
        .chain(problems.map(|(count, what)| format!("{count} {what}")))
}

#[cfg(test)]
mod tests;
