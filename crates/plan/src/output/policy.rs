//! A policy's status: counts, conditions and the nodes that need attention, from its members.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, ConditionType, GpuNodeStatus, NodeName, PoolName, keys,
    policy_status::{
        Attention, GpuTotals, MAX_ATTENTION, MAX_OVERLAPS, MAX_POOLS, NodeCounts, Overlap, PoolStatus, Summary,
    },
    reason::Reason,
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use kube::ResourceExt;

use super::policy_conditions::Trouble;
use crate::{
    assess::member::Member,
    desired::{driver::choice::DriverChoice, fault::Fault},
    note::clip,
    output::policy_conditions::Verdicts,
    rollout::pool,
};

/// Longest message in `attention`, in characters.
const MAX_MESSAGE: usize = 512;

/// One node as its policy counts it: only a part of its status, because all nodes are held in memory at once.
#[derive(Clone, Debug)]
pub struct Counted<'m> {
    /// Its name.
    pub node: &'m NodeName,
    /// Its pool.
    pub pool: &'m PoolName,
    /// Its model, if known.
    pub model: Option<&'m str>,
    /// Whether it counts towards readiness.
    pub serves: bool,
    /// Whether it has the desired revision.
    pub current: bool,
    /// Its desired driver version, if this operator installs the driver.
    pub driver_version: Option<&'m str>,
    /// Why the policy cannot be applied to it.
    pub fault: Option<&'m Fault>,
    /// Whether it is ready, by its present or pending GpuNode status.
    pub ready: bool,
    /// The reason of its status.
    pub reason: Reason,
    /// Since when it has had this reason.
    pub since: Option<Time>,
    /// The message of its status; empty if there is no problem.
    pub message: String,
    /// Its GPUs.
    pub gpus: GpuTotals,
}

impl<'m> Counted<'m> {
    /// Returns how a node with this present or pending status counts.
    #[must_use]
    pub fn of(member: &'m Member<'_>, status: GpuNodeStatus) -> Self {
        let reason = status.reason.unwrap_or(Reason::WaitingForReport);
        let has_problem = !status.is_ready() || reason.is_note();
        Self {
            node: &member.node.name,
            pool: &member.pool,
            model: member.model(),
            serves: member.node.serves() && !reason.counts_apart(),
            // A node without another revision is being installed, not updated.
            current: member.want().is_none_or(|want| pool::has_nothing_else(&member.have, &want)),
            driver_version: member.driver().and_then(DriverChoice::version),
            fault: member.desired.fault(),
            ready: status.is_ready(),
            reason,
            since: status.since,
            message: if has_problem { status.message.chars().take(MAX_MESSAGE).collect() } else { String::new() },
            gpus: GpuTotals {
                expected: status.gpus.expected.filter(|_| !reason.counts_apart()).unwrap_or_default(),
                allocatable: status.gpus.allocatable,
                unhealthy: status.gpus.unhealthy,
                degraded: status.gpus.degraded,
                unknown: status.gpus.unknown,
            },
        }
    }

    fn failed(&self) -> bool {
        !self.ready && self.reason.is_failure()
    }
}

/// Nodes that a policy selects but does not govern.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// The number of nodes that are excluded by their label.
    pub opted_out: u32,
    /// Other policies that select the same nodes.
    pub overlaps: Vec<Overlap>,
}

/// Returns a policy's status.
#[must_use]
pub fn status(
    policy: &ClusterGpuPolicy,
    nodes: &[Counted<'_>],
    others: Others,
    trouble: Trouble<'_>,
    now: Timestamp,
) -> ClusterGpuPolicyStatus {
    let (counts, gpus) = count(nodes.iter());
    let counts = NodeCounts { opted_out: others.opted_out, ..counts };
    let overlaps: Vec<Overlap> = others.overlaps.into_iter().take(MAX_OVERLAPS).collect();
    let pools = pools(policy, nodes, trouble);
    let attention = attention(nodes);
    let verdicts = Verdicts {
        policy,
        counts: &counts,
        gpus: &gpus,
        pools: &pools,
        attention: &attention,
        overlaps: &overlaps,
        trouble,
    };
    let conditions = verdicts.conditions(now);
    ClusterGpuPolicyStatus {
        observed_generation: policy.metadata.generation,
        conditions,
        summary: Summary {
            nodes: format!("{}/{}", counts.ready, counts.total),
            gpus: format!("{}/{}", gpus.allocatable, gpus.expected),
        },
        nodes: counts,
        gpus,
        pools,
        overlaps,
        attention,
    }
}

fn count<'c, 'm: 'c>(nodes: impl Iterator<Item = &'c Counted<'m>>) -> (NodeCounts, GpuTotals) {
    let (mut counts, mut gpus) = (NodeCounts::default(), GpuTotals::default());
    for node in nodes {
        counts.total += 1;
        let class = if !node.serves {
            &mut counts.excluded
        } else if node.ready {
            &mut counts.ready
        } else if node.failed() {
            &mut counts.failed
        } else {
            &mut counts.progressing
        };
        *class += 1;
        counts.outdated += u32::from(!node.current && node.serves);
        gpus.expected += node.gpus.expected;
        gpus.allocatable += node.gpus.allocatable;
        gpus.unhealthy += node.gpus.unhealthy;
        gpus.degraded += node.gpus.degraded;
        gpus.unknown += node.gpus.unknown;
    }
    (counts, gpus)
}

fn pools(policy: &ClusterGpuPolicy, nodes: &[Counted<'_>], trouble: Trouble<'_>) -> Vec<PoolStatus> {
    let mut by_pool: BTreeMap<&PoolName, Vec<&Counted<'_>>> = BTreeMap::new();
    for node in nodes {
        by_pool.entry(node.pool).or_default().push(node);
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
            let fault = members
                .iter()
                .find_map(|node| node.fault.map(|fault| (fault.reason, format!("{} {}", label(node), fault.message))));
            let halted = trouble.halted.get(name).map(|why| (Reason::RolloutHalted, why.clone()));
            let problem = trouble.pool_problems.get(name).cloned();
            // Errors in the policy come first, because `Accepted` depends on them. One reason, but all messages.
            let errors: Vec<(Reason, String)> = [fault.or(problem), halted].into_iter().flatten().collect();
            let message = errors.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("; ");
            PoolStatus {
                name: name.clone(),
                nodes: counts,
                gpus,
                driver_version: members.iter().find_map(|node| node.driver_version).map(str::to_owned),
                reason: errors.first().map(|(reason, _)| *reason),
                message: clip(&message),
            }
        })
        .collect()
}

fn label(node: &Counted<'_>) -> String {
    format!("node {} ({}):", node.node, node.model.unwrap_or("model unknown"))
}

/// Returns the nodes that need attention: failures first, then those that wait longest, then those that work but have a
/// problem.
fn attention(nodes: &[Counted<'_>]) -> Vec<Attention> {
    let mut needy: Vec<&Counted<'_>> = nodes
        .iter()
        .filter(|node| !node.ready || node.reason.is_note())
        // That GPUs are offered other than by a device plugin is intended.
        .filter(|node| !node.reason.counts_apart() || node.gpus.unhealthy + node.gpus.degraded > 0)
        .collect();
    needy.sort_by_key(|node| (node.ready, !node.failed(), node.since.as_ref().map(|since| since.0), node.node));
    needy.truncate(MAX_ATTENTION);
    needy
        .into_iter()
        .map(|node| Attention {
            node: node.node.clone(),
            pool: node.pool.clone(),
            reason: node.reason,
            message: node.message.clone(),
            since: node.since.clone(),
        })
        .collect()
}

/// Returns whether a policy has this operator's finalizer.
#[must_use]
pub fn has_finalizer(policy: &ClusterGpuPolicy) -> bool {
    policy.finalizers().iter().any(|finalizer| finalizer == keys::FINALIZER)
}

/// Returns whether the policy is ready by a status.
#[must_use]
pub fn is_ready(status: &ClusterGpuPolicyStatus) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.type_ == ConditionType::Ready.as_str() && condition.status == "True")
}
