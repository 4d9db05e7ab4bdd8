//! The conditions of a policy, compatible with kstatus.

use std::{collections::BTreeMap, sync::Arc};

use gpu_operator_crd::{
    ClusterGpuPolicy, ConditionType, NodeName, PoolName, keys,
    policy_status::{Attention, GpuTotals, NodeCounts, Overlap, PoolStatus},
    reason::Reason,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::{
    clock::Clock,
    ground::AgentRefusal,
    inventory::membership::PoolProblems,
    note::{Note, shown},
    pool_settings::int_or_percent,
    summary::{NodeSummary, by_state},
    world::HeldWrite,
};

const UNINSTALLED: &str = "the operator was uninstalled: what runs on the nodes keeps running, but nothing is installed, updated or \
                           reported; install the chart again to continue, or delete the policy after that to clean up its nodes";

type Answer = (bool, Reason, String);

#[derive(Clone, Copy, Debug)]
pub struct Trouble<'a> {
    /// Why rollouts are halted or rolled back.
    pub halted: &'a BTreeMap<PoolName, Note>,
    /// Why updates are pending, beside other updates that make progress.
    pub waits_for: Option<&'a str>,
    pub pool_problems: &'a PoolProblems,
    /// One of the models cannot be added, or the windows of the rollout are invalid.
    pub invalid: Option<&'a str>,
    /// A write that the API server rejects or another manager reverts.
    pub held_write: Option<&'a HeldWrite>,
    /// A Jetson that the policy selects.
    pub jetson: Option<&'a NodeName>,
    /// Without the chart's agents no node is known.
    pub agent_refusal: Option<AgentRefusal<'a>>,
    /// Pools in which unhealthy nodes are not drained, because too many are.
    pub not_drained: &'a [String],
}

pub struct Verdicts<'a> {
    pub policy: &'a ClusterGpuPolicy,
    pub nodes: &'a [Arc<NodeSummary>],
    pub counts: &'a NodeCounts,
    pub gpus: &'a GpuTotals,
    pub pools: &'a [PoolStatus],
    pub attention: &'a [Attention],
    /// A node that keeps its GPU stack for now.
    pub leaving: Option<&'a Attention>,
    pub overlaps: &'a [Overlap],
    pub trouble: Trouble<'a>,
}

impl Verdicts<'_> {
    pub fn conditions(&self, clock: &Clock) -> Vec<Condition> {
        let stalled = self.stalled();
        let conditions = [
            (ConditionType::Ready, self.ready()),
            (ConditionType::Reconciling, self.reconciling(&stalled)),
            (ConditionType::Stalled, stalled),
            (ConditionType::Degraded, self.degraded()),
            (ConditionType::Accepted, self.accepted()),
        ];
        let of = |(kind, (is, reason, message)): (_, Answer)| {
            condition(self.policy, kind, if is { "True" } else { "False" }, reason, &message, clock)
        };
        conditions.into_iter().map(of).collect()
    }

    fn deleting(&self) -> bool {
        self.policy.metadata.deletion_timestamp.is_some()
    }

    /// The nodes that count for `minReadyNodes`.
    fn serving(&self) -> u32 {
        self.counts.total - self.counts.excluded
    }

    fn is_ready(&self) -> bool {
        let serving = self.serving();
        let required = required(self.policy, serving);
        !self.deleting() && (serving > 0 || required == 0) && self.counts.ready + self.counts.updating >= required
    }

    fn ready(&self) -> Answer {
        let updating = self.updating().map(|nodes| format!(", {nodes}")).unwrap_or_default();
        let counts = format!("{} of {} nodes are ready{updating}", self.counts.ready, self.serving());
        let first = self
            .attention
            .first()
            .map_or_else(String::new, |node| format!("; node {}: {}: {}", node.node, node.reason, node.message));
        if self.deleting() {
            (false, Reason::Deleting, format!("the policy is being deleted{}", self.left()))
        } else if let Some(refusal) = self.trouble.agent_refusal.filter(|_| self.counts.total == 0) {
            (false, Reason::PodsForbidden, format!("no node is known, because {refusal}"))
        } else if self.counts.total == 0 && self.is_ready() {
            (true, Reason::NoNodes, format!("{}; none is required{}", self.no_nodes(), self.left()))
        } else if self.counts.total == 0 {
            (false, Reason::NoMatchingNodes, self.no_nodes() + &self.left())
        } else if self.serving() == 0 && !self.is_ready() {
            let excluded = by_state(self.nodes.iter().filter_map(|node| node.excluded), |state| state.as_str());
            let nodes = match self.counts.total {
                1 => format!("the only node is not eligible: {excluded}"),
                nodes => format!("none of {nodes} nodes is eligible: {excluded}"),
            };
            (false, Reason::NodesNotReady, nodes + &first)
        } else if !self.is_ready() {
            (false, Reason::NodesNotReady, counts + &first)
        } else if self.counts.ready == self.counts.total {
            (true, Reason::AllGpusAllocatable, counts)
        } else {
            (true, Reason::MinimumNodesReady, counts + &first)
        }
    }

    /// For messages.
    fn updating(&self) -> Option<String> {
        match self.counts.updating {
            0 => None,
            1 => Some("1 node is being updated".to_owned()),
            nodes => Some(format!("{nodes} nodes are being updated")),
        }
    }

    /// How many nodes are leaving, and what the first waits for, as the end of a message.
    fn left(&self) -> String {
        let left = match self.counts.leaving {
            0 => return String::new(),
            1 => "; 1 node still has its GPU stack".to_owned(),
            nodes => format!("; {nodes} nodes still have their GPU stack"),
        };
        let first = self.leaving.map(|node| format!("; node {}: {}", node.node, node.message));
        left + &first.unwrap_or_default()
    }

    fn no_nodes(&self) -> String {
        if let Some(overlap) = self.overlaps.first() {
            let Overlap { nodes, governed_by, .. } = overlap;
            return format!(
                "{} governed by policy {governed_by:?}, which has a higher priority or is older. Narrow the nodeSelector of {governed_by:?}, or set priority",
                matching(*nodes)
            );
        }
        match self.counts.opted_out {
            0 => {
                let jetson = |node: &NodeName| {
                    format!(
                        "; node {node} is a Jetson, which this operator does not support: its GPU is not on the PCI bus"
                    )
                };
                let jetson = self.trouble.jetson.map(jetson).unwrap_or_default();
                format!("no node with an NVIDIA GPU matches the policy{jetson}")
            }
            out => format!("{} excluded by label {}", matching(out), keys::MANAGED),
        }
    }

    /// Whether users should wait: not while the policy is stalled, because kstatus would not report the failure, nor for nodes that a ready
    /// policy does not require.
    fn reconciling(&self, stalled: &Answer) -> Answer {
        match (self.changes(), stalled) {
            (None, _) => (false, Reason::Settled, "no node is being installed or updated".to_owned()),
            (Some((_, changes)), (true, why, _)) => (false, *why, format!("{changes} (see condition Stalled)")),
            (Some((Reason::NodesNotReady, changes)), _) if self.is_ready() => {
                (false, Reason::MinimumNodesReady, changes)
            }
            (Some((reason, changes)), _) => (true, reason, changes),
        }
    }

    /// Returns the changes in progress.
    fn changes(&self) -> Option<(Reason, String)> {
        let (count, all) = (self.counts.progressing, self.serving());
        if self.deleting() {
            Some((Reason::Deleting, format!("the GPU stack is being removed from the nodes{}", self.left())))
        } else if self.counts.updating > 0 || self.counts.outdated > 0 && self.counts.ready > 0 {
            let outdated = match self.counts.outdated {
                0 => None,
                1 => Some(format!("1 of {all} nodes still has the previous revision")),
                nodes => Some(format!("{nodes} of {all} nodes still have the previous revision")),
            };
            let nodes: Vec<_> = outdated.into_iter().chain(self.updating()).collect();
            // Beside an update that goes on, it is not the only cause.
            let separator = if self.counts.updating == 0 { ": " } else { "; " };
            let waits_for = self.trouble.waits_for.map(|why| format!("{separator}{why}")).unwrap_or_default();
            Some((Reason::RollingOut, nodes.join(", ") + &waits_for))
        } else if count > 0 {
            let pending = self.nodes.iter().filter(|node| node.in_progress());
            let phases = by_state(pending.map(|node| node.phase), |phase| phase.as_str());
            Some((Reason::NodesNotReady, format!("{count} of {all} nodes are in progress: {phases}")))
        } else {
            None
        }
    }

    /// A failed node stalls a policy only while the policy is not ready. A halted rollout or an invalid part of the policy always does.
    fn stalled(&self) -> Answer {
        if let Some(held) = self.trouble.held_write {
            return (true, held.reason, held.message.clone());
        }
        if let Some(refusal) = self.trouble.agent_refusal {
            return (true, Reason::PodsForbidden, refusal.to_string());
        }
        if let Some((pool, reason)) = self.pools.iter().find_map(|pool| Some((pool, pool.reason()?))) {
            return (true, reason, format!("pool {}: {}", pool.name, pool.message));
        }
        if let Some(invalid) = self.trouble.invalid {
            return (true, Reason::InvalidPolicy, invalid.to_owned());
        }
        if self.counts.total == 0 && !self.overlaps.is_empty() && !self.is_ready() && !self.deleting() {
            return (true, Reason::PolicyOverlap, self.no_nodes());
        }
        let failed = self
            .attention
            .iter()
            .filter_map(|node| Some((node, node.reason()?)))
            .find(|(_, reason)| reason.is_failure());
        // A node that is ready may also have a reason of a failure, as a note.
        match failed.filter(|_| !self.is_ready() && self.counts.failed > 0) {
            Some((node, reason)) => (true, reason, format!("node {}: {}", node.node, node.message)),
            None => (false, Reason::Settled, "nothing is stalled".to_owned()),
        }
    }

    /// Reports faulty GPUs, whether or not the nodes are ready.
    fn degraded(&self) -> Answer {
        let GpuTotals { unhealthy, degraded, unknown, .. } = *self.gpus;
        let counts = [(unhealthy, "unhealthy"), (degraded, "degraded"), (unknown, "of unknown health")];
        let counts: Vec<_> = counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, how)| match count {
                1 => format!("1 GPU is {how}"),
                _ => format!("{count} GPUs are {how}"),
            })
            .collect();
        let reason = match (unhealthy, degraded, unknown) {
            (0, 0, 0) => return (false, Reason::AllGpusHealthy, "no GPU has a known problem".to_owned()),
            (0, 0, _) => Reason::HealthUnknown,
            (0, _, _) => Reason::GpuDegraded,
            _ => Reason::GpuUnhealthy,
        };
        let worst = self.attention.iter().find(|node| node.reason == reason);
        let worst = worst.map(|node| format!("; node {}: {}", node.node, node.message)).unwrap_or_default();
        let sentences = [counts.join(", ")].into_iter().chain(self.trouble.not_drained.iter().cloned());
        (true, reason, sentences.collect::<Vec<_>>().join("; ") + &worst)
    }

    fn accepted(&self) -> Answer {
        let fault = self.pools.iter().find(|pool| {
            matches!(
                pool.reason(),
                Some(
                    Reason::DriverUnsupported
                        | Reason::NoDriverImageForOS
                        | Reason::UnknownGpu
                        | Reason::ChecksumMissing
                        | Reason::DriverNotInstalled
                        | Reason::RuntimeUnsupported
                        | Reason::DevicePluginUnsupported
                        | Reason::DraUnsupported
                        | Reason::MigLayoutRefused
                        | Reason::UnknownModel
                        | Reason::PoolShadowed
                        | Reason::InvalidPolicy
                )
            )
        });
        match (fault, self.trouble.invalid) {
            (Some(pool), _) => (false, Reason::InvalidPolicy, format!("pool {}: {}", pool.name, pool.message)),
            (None, Some(invalid)) => (false, Reason::InvalidPolicy, invalid.to_owned()),
            (None, None) => (true, Reason::PolicyAccepted, "every part of the policy can be applied".to_owned()),
        }
    }
}

fn matching(nodes: u32) -> String {
    if nodes == 1 { "the matching node is".to_owned() } else { format!("the {nodes} matching nodes are") }
}

/// A policy without nodes is ready only if it requires none explicitly.
fn required(policy: &ClusterGpuPolicy, serving: u32) -> u32 {
    let wanted = policy.spec.readiness.min_ready_nodes.as_ref();
    match wanted {
        // Of no nodes every percentage is zero, which does not mean that none is required.
        Some(wanted) if int_or_percent(wanted, 100) == 0 => 0,
        Some(wanted) => int_or_percent(wanted, serving).max(1),
        None => serving.max(1),
    }
}

/// Nothing is known of the policy once the operator is uninstalled.
pub fn uninstalled(policy: &ClusterGpuPolicy, clock: &Clock) -> Vec<Condition> {
    use ConditionType::{Accepted, Degraded, Ready, Reconciling, Stalled};
    let of = |kind| {
        let message = match kind {
            Ready => UNINSTALLED,
            Reconciling | Stalled | Degraded | Accepted => "the operator was uninstalled; see condition Ready",
        };
        condition(policy, kind, "Unknown", Reason::OperatorUninstalled, message, clock)
    };
    [Ready, Reconciling, Stalled, Degraded, Accepted].map(of).into()
}

fn condition(
    policy: &ClusterGpuPolicy,
    kind: ConditionType,
    status: &str,
    reason: Reason,
    message: &str,
    clock: &Clock,
) -> Condition {
    let before = policy.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let unchanged = before.iter().find(|condition| condition.type_ == kind.as_str() && condition.status == status);
    Condition {
        type_: kind.as_str().to_owned(),
        status: status.to_owned(),
        reason: reason.as_str().to_owned(),
        message: shown(message),
        observed_generation: policy.metadata.generation,
        last_transition_time: unchanged.map_or(Time(clock.now()), |condition| condition.last_transition_time.clone()),
    }
}
