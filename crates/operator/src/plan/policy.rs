//! A policy's status: counts, conditions and the nodes that need attention, from its members.

mod conditions;

use std::collections::BTreeMap;

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, ConditionType, GpuNodeStatus, keys,
    policy_status::{
        Attention, GpuTotals, MAX_ATTENTION, MAX_OVERLAPS, MAX_POOLS, NodeCounts, Overlap, PoolStatus, Summary,
    },
    reason::Reason,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use conditions::Verdicts;

use super::{gpu_node::clip, misfit::Misfits};

/// One node as its policy counts it.
#[derive(Clone, Debug)]
pub struct Counted {
    /// Its name.
    pub node: String,
    /// Its pool.
    pub pool: String,
    /// Whether it can be expected to serve at all.
    pub serves: bool,
    /// Whether its revision is the wanted one.
    pub current: bool,
    /// The driver version that is wanted for it, where it is ours to install.
    pub driver_version: Option<String>,
    /// Why what the policy asks for cannot be carried out here.
    pub fault: Option<(Reason, String)>,
    /// What its GpuNode says, or is about to.
    pub status: GpuNodeStatus,
}

impl Counted {
    /// Whether it offers its GPUs another way than by a device plugin.
    fn is_apart(&self) -> bool {
        self.status.reason.is_some_and(Reason::counts_apart)
    }

    fn failed(&self) -> bool {
        !self.status.is_ready() && self.status.reason.is_some_and(Reason::is_failure)
    }
}

/// What is the matter beyond single nodes.
#[derive(Clone, Copy, Debug)]
pub struct Trouble<'a> {
    /// Why pools stand still, by pool.
    pub halted: &'a BTreeMap<String, String>,
    /// Pools that have no node because of how they are written.
    pub misfits: &'a Misfits,
    /// Why a model that the policy adds cannot be added.
    pub models: Option<&'a str>,
    /// What the API server said to writes of ours that it refused.
    pub refused_writes: &'a [String],
    /// What it said to the probe's pods, if it refuses them: without them no node is known.
    pub probe_refusal: Option<&'a str>,
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
    nodes: &[Counted],
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

fn count<'c>(nodes: impl Iterator<Item = &'c Counted>) -> (NodeCounts, GpuTotals) {
    let (mut counts, mut gpus) = (NodeCounts::default(), GpuTotals::default());
    for node in nodes {
        counts.total += 1;
        let class = if !node.serves {
            &mut counts.excluded
        } else if node.status.is_ready() {
            &mut counts.ready
        } else if node.failed() {
            &mut counts.failed
        } else {
            &mut counts.progressing
        };
        *class += 1;
        counts.outdated += u32::from(!node.current && node.serves);
        gpus.expected += node.status.gpus.expected.filter(|_| !node.is_apart()).unwrap_or_default();
        gpus.allocatable += node.status.gpus.allocatable;
        gpus.unhealthy += node.status.gpus.unhealthy;
        gpus.degraded += node.status.gpus.degraded;
        gpus.unknown += node.status.gpus.unknown;
    }
    (counts, gpus)
}

fn pools(policy: &ClusterGpuPolicy, nodes: &[Counted], trouble: Trouble<'_>) -> Vec<PoolStatus> {
    let mut by_pool: BTreeMap<&str, Vec<&Counted>> = BTreeMap::new();
    for node in nodes {
        by_pool.entry(&node.pool).or_default().push(node);
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
            let fault = members.iter().find_map(|node| {
                node.fault.clone().map(|(reason, message)| (reason, format!("{} {message}", label(node))))
            });
            let halted = trouble.halted.get(name).map(|why| (Reason::RolloutHalted, why.clone()));
            let misfit = trouble.misfits.get(name).cloned();
            // What the policy has to say differently comes first: `Accepted` goes by it. One word, but every sentence.
            let told: Vec<(Reason, String)> = [fault.or(misfit), halted].into_iter().flatten().collect();
            let message = told.iter().map(|(_, message)| message.as_str()).collect::<Vec<_>>().join("; ");
            PoolStatus {
                name: name.to_owned(),
                nodes: counts,
                gpus,
                driver_version: members.iter().find_map(|node| node.driver_version.clone()),
                reason: told.first().map(|(reason, _)| *reason),
                message: clip(&message),
            }
        })
        .collect()
}

fn label(node: &Counted) -> String {
    format!("node {} ({}):", node.node, node.status.model.as_deref().unwrap_or("model unknown"))
}

/// Failures first, then those that wait longest, then those that work and are yet worth a look.
fn attention(nodes: &[Counted]) -> Vec<Attention> {
    let mut needy: Vec<&Counted> = nodes
        .iter()
        .filter(|node| !node.status.is_ready() || node.status.reason.is_some_and(Reason::is_note))
        // Somebody wants it so.
        .filter(|node| !node.is_apart() || node.status.gpus.unhealthy + node.status.gpus.degraded > 0)
        .collect();
    needy.sort_by_key(|node| (node.status.is_ready(), !node.failed(), node.status.since(), node.node.clone()));
    needy.truncate(MAX_ATTENTION);
    needy
        .into_iter()
        .map(|node| Attention {
            node: node.node.clone(),
            pool: node.pool.clone(),
            reason: node.status.reason.unwrap_or(Reason::WaitingForReport),
            message: node.status.message.chars().take(512).collect(),
            since: node.status.since.clone(),
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
