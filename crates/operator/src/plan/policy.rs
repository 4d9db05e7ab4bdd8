//! A policy's status: counts, conditions and the nodes that need attention, from its members.

use std::collections::BTreeMap;

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicyStatus, ConditionType, GpuNodeStatus, keys,
    policy_status::{
        Attention, GpuTotals, MAX_ATTENTION, MAX_OVERLAPS, MAX_POOLS, NodeCounts, Overlap, PoolStatus, Summary,
    },
    reason::Reason,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use kube::ResourceExt;

use super::{gpu_node::clip, misfit::Misfits, share};

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
    let before = policy.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let conditions = [
        (ConditionType::Ready, verdicts.ready()),
        (ConditionType::Reconciling, verdicts.reconciling()),
        (ConditionType::Stalled, verdicts.stalled()),
        (ConditionType::Degraded, verdicts.degraded()),
        (ConditionType::Accepted, verdicts.accepted()),
    ];
    let conditions = conditions
        .into_iter()
        .map(|(kind, (is, reason, message))| {
            condition(kind, is, reason, &message, policy.metadata.generation, before, now)
        })
        .collect();
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
        gpus.expected += node.status.gpus.expected.unwrap_or_default();
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

type Answer = (bool, Reason, String);

/// The conditions, one function each.
struct Verdicts<'a> {
    policy: &'a ClusterGpuPolicy,
    counts: &'a NodeCounts,
    gpus: &'a GpuTotals,
    pools: &'a [PoolStatus],
    attention: &'a [Attention],
    overlaps: &'a [Overlap],
    trouble: Trouble<'a>,
}

impl Verdicts<'_> {
    fn deleting(&self) -> bool {
        self.policy.metadata.deletion_timestamp.is_some()
    }

    /// Nodes that count for `minReadyNodes`.
    fn serving(&self) -> u32 {
        self.counts.total - self.counts.excluded
    }

    fn is_ready(&self) -> bool {
        let serving = self.serving();
        !self.deleting() && serving > 0 && self.counts.ready >= required(self.policy, serving)
    }

    fn ready(&self) -> Answer {
        let counts = format!("{} of {} nodes are ready", self.counts.ready, self.serving());
        let first = self
            .attention
            .first()
            .map_or_else(String::new, |node| format!("; {}: {}: {}", node.node, node.reason, node.message));
        if self.deleting() {
            (false, Reason::Deleting, "the policy is being deleted".to_owned())
        } else if let Some(refusal) = self.trouble.probe_refusal.filter(|_| self.counts.total == 0) {
            (false, Reason::PodsForbidden, format!("no node is known, because the probe's pods are refused: {refusal}"))
        } else if self.counts.total == 0 {
            (false, Reason::NoMatchingNodes, self.no_nodes())
        } else if !self.is_ready() {
            (false, Reason::NodesNotReady, counts + &first)
        } else if self.counts.ready == self.counts.total {
            (true, Reason::AllGpusAllocatable, counts)
        } else {
            (true, Reason::MinimumNodesReady, counts + &first)
        }
    }

    /// Why the policy has no node.
    fn no_nodes(&self) -> String {
        if let Some(overlap) = self.overlaps.first() {
            let Overlap { nodes, governed_by, .. } = overlap;
            return format!(
                "the {nodes} nodes that match belong to policy {governed_by}, which is older; narrow its nodeSelector"
            );
        }
        match self.counts.opted_out {
            0 => "no node with an NVIDIA GPU matches the policy".to_owned(),
            out => format!("the {out} nodes that match are out by their label {}", keys::MANAGED),
        }
    }

    fn reconciling(&self) -> Answer {
        if self.deleting() {
            (true, Reason::Deleting, "labels are being taken off the nodes".to_owned())
        } else if self.counts.outdated > 0 && self.counts.ready > 0 {
            (true, Reason::RollingOut, format!("{} nodes are not at the wanted revision yet", self.counts.outdated))
        } else if self.counts.progressing > 0 {
            (true, Reason::NodesNotReady, format!("{} nodes are on their way", self.counts.progressing))
        } else {
            (false, Reason::Settled, "nothing is being moved".to_owned())
        }
    }

    /// A failed node stalls a policy only while it keeps it from being ready; a halted rollout or an impossible wish
    /// always does.
    fn stalled(&self) -> Answer {
        if let Some(refused) = self.trouble.refused_writes.first() {
            return (true, Reason::ApplyFailed, refused.clone());
        }
        if let Some(refusal) = self.trouble.probe_refusal {
            return (true, Reason::PodsForbidden, format!("the probe's pods are refused: {refusal}"));
        }
        if let Some((pool, reason)) = self.pools.iter().find_map(|pool| Some((pool, pool.reason?))) {
            return (true, reason, format!("pool {}: {}", pool.name, pool.message));
        }
        let failed = self.attention.iter().find(|node| node.reason.is_failure());
        match failed.filter(|_| !self.is_ready()) {
            Some(node) => (true, node.reason, format!("node {}: {}", node.node, node.message)),
            None => (false, Reason::Settled, "nothing stands still".to_owned()),
        }
    }

    /// The health of the GPUs, whether or not the nodes are ready for it.
    fn degraded(&self) -> Answer {
        let GpuTotals { unhealthy, degraded, unknown, .. } = *self.gpus;
        let counts = [(unhealthy, "unhealthy"), (degraded, "degraded"), (unknown, "of unknown health")];
        let counts: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, how)| format!("{count} GPUs are {how}"))
            .collect();
        let reason = match (unhealthy, degraded, unknown) {
            (0, 0, 0) => return (false, Reason::AllGpusHealthy, "nothing is wrong with any GPU".to_owned()),
            (0, 0, _) => Reason::HealthUnknown,
            (0, _, _) => Reason::GpuDegraded,
            _ => Reason::GpuUnhealthy,
        };
        let worst = self.attention.iter().find(|node| node.reason == reason);
        let worst = worst.map(|node| format!("; node {}: {}", node.node, node.message)).unwrap_or_default();
        (true, reason, counts.join(", ") + &worst)
    }

    fn accepted(&self) -> Answer {
        let fault = self.pools.iter().find(|pool| {
            matches!(
                pool.reason,
                Some(
                    Reason::DriverUnsupported
                        | Reason::NoDriverImageForOS
                        | Reason::DriverNotInstalled
                        | Reason::RuntimeUnsupported
                        | Reason::DevicePluginUnsupported
                        | Reason::UnknownModel
                        | Reason::PoolShadowed
                )
            )
        });
        match (fault, self.trouble.models) {
            (Some(pool), _) => (false, Reason::InvalidPolicy, format!("pool {}: {}", pool.name, pool.message)),
            (None, Some(conflict)) => (false, Reason::InvalidPolicy, conflict.to_owned()),
            (None, None) => (true, Reason::PolicyAccepted, "every part of the policy can be carried out".to_owned()),
        }
    }
}

/// How many of the serving nodes must be ready: at least one, so that nothing is never enough.
fn required(policy: &ClusterGpuPolicy, serving: u32) -> u32 {
    let wanted = policy.spec.readiness.min_ready_nodes.as_ref();
    wanted.map_or(serving, |wanted| share::of(wanted, serving)).max(1)
}

fn condition(
    kind: ConditionType,
    is: bool,
    reason: Reason,
    message: &str,
    generation: Option<i64>,
    before: &[Condition],
    now: Timestamp,
) -> Condition {
    let status = if is { "True" } else { "False" };
    let unchanged = before.iter().find(|condition| condition.type_ == kind.as_str() && condition.status == status);
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: clip(message),
        observed_generation: generation,
        last_transition_time: unchanged.map_or(Time(now), |condition| condition.last_transition_time.clone()),
    }
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
