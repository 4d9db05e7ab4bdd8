//! A policy's status: counts, conditions and the nodes that need attention, from its members.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, ConditionType, GpuNodeStatus, keys,
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

/// Longest message in `attention`.
const MAX_TOLD: usize = 512;

/// One node as its policy counts it: no more of its status than that, since all of them are held at once.
#[derive(Clone, Debug)]
pub struct Counted<'m> {
    /// Its name.
    pub node: &'m str,
    /// Its pool.
    pub pool: &'m str,
    /// Its model, once it is known.
    pub model: Option<&'m str>,
    /// Whether it can be expected to serve at all.
    pub serves: bool,
    /// Whether its revision is the wanted one.
    pub current: bool,
    /// The driver version that is wanted for it, where it is ours to install.
    pub driver_version: Option<&'m str>,
    /// Why what the policy asks for cannot be carried out here.
    pub fault: Option<&'m Fault>,
    /// Whether it is ready, as its GpuNode says or is about to.
    pub ready: bool,
    /// Why it is as it is, in one word.
    pub reason: Reason,
    /// Since when.
    pub since: Option<Time>,
    /// What is to be said of it; nothing where all is well.
    pub message: String,
    /// Its GPUs.
    pub gpus: GpuTotals,
}

impl<'m> Counted<'m> {
    /// How a node counts whose status is, or is about to be, this one.
    #[must_use]
    pub fn of(member: &'m Member<'_>, status: GpuNodeStatus) -> Self {
        let reason = status.reason.unwrap_or(Reason::WaitingForReport);
        let told = !status.is_ready() || reason.is_note();
        Self {
            node: &member.node.name,
            pool: &member.pool,
            model: member.model(),
            serves: member.node.serves() && !reason.counts_apart(),
            // What has nothing else is being installed, and moves from no revision to another.
            current: member.want().is_none_or(|want| pool::has_nothing_else(&member.have, &want)),
            driver_version: member.driver().and_then(DriverChoice::version),
            fault: member.desired.fault(),
            ready: status.is_ready(),
            reason,
            since: status.since,
            message: if told { status.message.chars().take(MAX_TOLD).collect() } else { String::new() },
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

/// Nodes that a policy selects and does not govern.
#[derive(Clone, Debug, Default)]
pub struct Others {
    /// Out by their label.
    pub opted_out: u32,
    /// Other policies that select the same nodes.
    pub overlaps: Vec<Overlap>,
}

/// A policy's status.
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
    let mut by_pool: BTreeMap<&str, Vec<&Counted<'_>>> = BTreeMap::new();
    for node in nodes {
        by_pool.entry(node.pool).or_default().push(node);
    }
    // Named pools in the user's order, those without nodes too, then the implicit ones.
    let named: Vec<&str> = policy.spec.pools.iter().map(|pool| pool.name.as_str()).collect();
    let implicit = by_pool.keys().copied().filter(|name| !named.contains(name));
    let listed: Vec<&str> = named.iter().copied().chain(implicit).take(MAX_POOLS).collect();
    listed
        .into_iter()
        .map(|name| {
            let members = by_pool.get(name).map(Vec::as_slice).unwrap_or_default();
            let (counts, gpus) = count(members.iter().copied());
            let fault = members
                .iter()
                .find_map(|node| node.fault.map(|fault| (fault.reason, format!("{} {}", label(node), fault.message))));
            let halted = trouble.halted.get(name).map(|why| (Reason::RolloutHalted, why.clone()));
            let misfit = trouble.misfits.get(name).cloned();
            // What the policy has to say differently comes first: `Accepted` goes by it. One word, but every sentence.
            let told: Vec<(Reason, String)> = [fault.or(misfit), halted].into_iter().flatten().collect();
            let message = told.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("; ");
            PoolStatus {
                name: name.to_owned(),
                nodes: counts,
                gpus,
                driver_version: members.iter().find_map(|node| node.driver_version).map(str::to_owned),
                reason: told.first().map(|(reason, _)| *reason),
                message: clip(&message),
            }
        })
        .collect()
}

fn label(node: &Counted<'_>) -> String {
    format!("node {} ({}):", node.node, node.model.unwrap_or("model unknown"))
}

/// Failures first, then those that wait longest, then those that work and are yet worth a look.
fn attention(nodes: &[Counted<'_>]) -> Vec<Attention> {
    let mut needy: Vec<&Counted<'_>> = nodes
        .iter()
        .filter(|node| !node.ready || node.reason.is_note())
        // Where GPUs are offered another way than by a device plugin, somebody wants it so.
        .filter(|node| !node.reason.counts_apart() || node.gpus.unhealthy + node.gpus.degraded > 0)
        .collect();
    needy.sort_by_key(|node| (node.ready, !node.failed(), node.since.as_ref().map(|since| since.0), node.node));
    needy.truncate(MAX_ATTENTION);
    needy
        .into_iter()
        .map(|node| Attention {
            node: node.node.to_owned(),
            pool: node.pool.to_owned(),
            reason: node.reason,
            message: node.message.clone(),
            since: node.since.clone(),
        })
        .collect()
}

/// Whether the finalizer of ours is on a policy.
#[must_use]
pub fn has_finalizer(policy: &ClusterGpuPolicy) -> bool {
    policy.finalizers().iter().any(|finalizer| finalizer == keys::FINALIZER)
}

/// Whether a status, as it is to be, says the policy is ready.
#[must_use]
pub fn is_ready(status: &ClusterGpuPolicyStatus) -> bool {
    status
        .conditions
        .iter()
        .any(|condition| condition.type_ == ConditionType::Ready.as_str() && condition.status == "True")
}
