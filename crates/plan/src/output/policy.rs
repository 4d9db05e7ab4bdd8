//! A policy's status: counts, conditions and the nodes that need attention.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, PoolName, keys,
    policy_status::{
        Attention, GpuTotals, MAX_ATTENTION, MAX_OVERLAPS, MAX_POOLS, NodeCounts, Overlap, PoolStatus, RolloutStatus,
        Summary,
    },
    reason::Reason,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::ResourceExt;

use super::policy_conditions::Trouble;
use crate::{
    clock::Clock,
    note::shown,
    output::{
        headline::{self, Headline},
        policy_conditions::Verdicts,
    },
    summary::{DriverVersion, NodeSummary, count},
};

/// Nodes that a policy selects but does not govern.
#[derive(Clone, Debug, Default)]
pub struct Others<'a> {
    /// Excluded by their label.
    pub opted_out: u32,
    /// Policies that select the same nodes.
    pub overlaps: Vec<Overlap>,
    /// Nodes that it governed and that still have something of this operator.
    pub leaving: &'a [Attention],
    /// The number of nodes whose update has failed.
    pub failed_updates: u32,
    /// The keys of taints that its nodes may have from it.
    pub published_keys: Vec<String>,
}

pub fn status(
    policy: &ClusterGpuPolicy,
    nodes: &[Arc<NodeSummary>],
    others: Others<'_>,
    trouble: Trouble<'_>,
    clock: &Clock,
) -> ClusterGpuPolicyStatus {
    let (counts, gpus) = count(nodes.iter().map(Arc::as_ref));
    let leaving = u32::try_from(others.leaving.len()).unwrap_or(u32::MAX);
    let counts = NodeCounts { opted_out: others.opted_out, leaving, ..counts };
    let overlaps: Vec<Overlap> = others.overlaps.into_iter().take(MAX_OVERLAPS).collect();
    let pools = pools(policy, nodes, trouble);
    let attention = attention(nodes, others.leaving);
    let verdicts = Verdicts {
        policy,
        nodes,
        counts: &counts,
        gpus: &gpus,
        pools: &pools,
        attention: &attention,
        leaving: others.leaving.iter().find(|node| node.reason() == Some(Reason::Leaving)),
        overlaps: &overlaps,
        trouble,
    };
    let conditions = verdicts.conditions(clock);
    let summary = summary(&conditions, &counts, &gpus);
    ClusterGpuPolicyStatus {
        observed_generation: policy.metadata.generation,
        conditions,
        summary,
        nodes: counts,
        gpus,
        pools,
        rollout: rollout(nodes, others.failed_updates),
        overlaps,
        published_keys: others.published_keys,
        attention,
    }
}

/// Not shown while there is no rollout.
fn rollout(nodes: &[Arc<NodeSummary>], failed: u32) -> RolloutStatus {
    let count = |is: &dyn Fn(&NodeSummary) -> bool| {
        u32::try_from(nodes.iter().filter(|node| is(node)).count()).unwrap_or(u32::MAX)
    };
    let in_progress = count(&|node| node.in_turn);
    let waiting = count(&|node| !node.current && !node.in_turn);
    if in_progress + waiting + failed == 0 {
        return RolloutStatus::default();
    }
    let done = count(&|node| node.current && !node.in_turn);
    RolloutStatus {
        total: in_progress + waiting + done,
        done,
        in_progress,
        waiting,
        failed,
        ..RolloutStatus::default()
    }
}

/// What `kubectl get` shows.
fn summary(conditions: &[Condition], counts: &NodeCounts, gpus: &GpuTotals) -> Summary {
    let Headline { status, condition } = headline::of(conditions);
    let eligible = counts.total - counts.excluded;
    Summary {
        status: status.to_owned(),
        reason: condition.map(|condition| condition.reason.clone()).unwrap_or_default(),
        message: condition.map(|condition| condition.message.clone()).unwrap_or_default(),
        nodes: format!("{}/{}", counts.ready, counts.total),
        updated: format!("{}/{eligible}", eligible.saturating_sub(counts.outdated)),
        gpus: format!("{}/{}", gpus.allocatable, gpus.expected),
    }
}

fn pools(policy: &ClusterGpuPolicy, nodes: &[Arc<NodeSummary>], trouble: Trouble<'_>) -> Vec<PoolStatus> {
    let mut by_pool: BTreeMap<&PoolName, Vec<&NodeSummary>> = BTreeMap::new();
    for node in nodes {
        by_pool.entry(&node.pool).or_default().push(node);
    }
    // Named pools in the policy's order, including those without nodes, then the implicit ones.
    let named: Vec<&PoolName> = policy.spec.pools.iter().map(|pool| &pool.name).collect();
    let implicit = by_pool.keys().copied().filter(|name| !named.contains(name));
    let listed: Vec<&PoolName> = named.iter().copied().chain(implicit).take(MAX_POOLS).collect();
    listed
        .into_iter()
        .map(|name| {
            let members = by_pool.get(name).map(Vec::as_slice).unwrap_or_default();
            let (counts, gpus) = count(members.iter().copied());
            let fault = members.iter().find_map(|node| {
                node.fault.as_ref().map(|fault| (fault.reason, format!("{} {}", label(node), fault.message)))
            });
            let halted = trouble.halted.get(name).map(|why| (why.reason, why.message.clone()));
            let problem = trouble.pool_problems.get(name).cloned();
            // Errors in the policy come first, because `Accepted` depends on them. One reason, but all messages.
            let errors: Vec<(Reason, String)> = [fault.or(problem), halted].into_iter().flatten().collect();
            let message = errors.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("; ");
            PoolStatus {
                name: name.clone(),
                nodes: counts,
                gpus,
                driver_version: driver_version(policy, name, members),
                reason: errors.first().map(|(reason, _)| (*reason).into()),
                message: shown(&message),
            }
        })
        .collect()
}

/// While the version is unknown for all nodes, as after a reboot, the previous one stays.
fn driver_version(policy: &ClusterGpuPolicy, pool: &PoolName, members: &[&NodeSummary]) -> Option<String> {
    let had = || policy.status.as_ref()?.pools.iter().find(|found| found.name == *pool)?.driver_version.clone();
    let version = |node: &NodeSummary| match &node.driver_version {
        DriverVersion::Is(version) => Some(version.clone()),
        DriverVersion::Unknown | DriverVersion::Other => None,
    };
    let any_known = members.is_empty() || members.iter().any(|node| node.driver_version != DriverVersion::Unknown);
    members.iter().find_map(|node| version(node)).or_else(|| if any_known { None } else { had() })
}

fn label(node: &NodeSummary) -> String {
    format!("node {} ({}):", node.node, node.model.as_deref().unwrap_or("model unknown"))
}

/// Failures first, then nodes that wait longest, then those that work but have a problem, then those that are leaving.
fn attention(nodes: &[Arc<NodeSummary>], leaving: &[Attention]) -> Vec<Attention> {
    let mut needy: Vec<&NodeSummary> = nodes
        .iter()
        .map(Arc::as_ref)
        .filter(|node| !node.ready || node.reason.is_note())
        // That GPUs are offered other than by a device plugin is intended.
        .filter(|node| !node.reason.counts_apart() || node.gpus.unhealthy + node.gpus.degraded > 0)
        .collect();
    needy.sort_by_key(|node| (node.ready, !node.failed(), node.since.as_ref().map(|since| since.0), &node.node));
    needy.truncate(MAX_ATTENTION);
    let needy = needy.into_iter().map(|node| Attention {
        node: node.node.clone(),
        pool: node.pool.clone(),
        reason: node.reason.into(),
        message: node.message.clone(),
        since: node.since.clone(),
    });
    needy.chain(leaving.iter().cloned()).take(MAX_ATTENTION).collect()
}

pub fn has_finalizer(policy: &ClusterGpuPolicy) -> bool {
    policy.finalizers().iter().any(|finalizer| finalizer == keys::FINALIZER)
}
