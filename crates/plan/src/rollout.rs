//! The rollout: which node is updated next, which groups each node's labels should name, and which pods are recreated.
//!
//! A revision is a hash of all that disrupts: driver version, images, environment, arguments. It is part of the DaemonSet's name and
//! of the node's label, so a node is updated by one write of labels:
//!
//! ```text
//!               wanted ≠ had, no other node of the pool is being updated,
//!               no pod uses a GPU of the node
//!     ┌──────┐ ────────────────────────────────────────▶ ┌─────────┐
//!     │ Idle │   (driver unchanged: straight to Install)  │  Check  │  the probe lists other programs that hold the GPUs
//!     └──────┘ ◀──────────────────────────────────────── └────┬────┘
//!        ▲         there is one that does not give way         │ there is none
//!        │                                                     ▼
//!        │                                               ┌─────────┐  device plugin removed, probe releases NVML,
//!        │ ◀──────────────────────────────────────────── │ Release │  DaemonSets give way, then a second look for GPU
//!        │         a GPU pod or a program came in between └────┬────┘  pods and other programs
//!        │                                                     │ nothing holds the driver
//!        │                                                     ▼
//!        │     ready, and every stage proven             ┌─────────┐
//!        └────────────────────────────────────────────── │ Install │  labels name the new groups; on the node:
//!                                                        └────┬────┘  guard ─▶ driver ─▶ toolkit ─▶ device plugin
//!                                                             │ failure, or the node goes away
//!                                                             ▼
//!                                                   the node keeps its place, which halts its pool (RolloutHalted) until it
//!                                                   recovers or the policy changes; another driver then goes through Release
//! ```
//!
//! Cordoned nodes take their turn before the others: a node that was cordoned and drained is updated although the rest of the fleet
//! is never idle. The operator neither cordons nor uncordons a node. An update that leaves the driver unchanged waits for no pod,
//! except where it repartitions GPUs by MIG. A node that has no group yet gets the wanted ones at once, and so does one that has
//! failed and offers no GPU: neither has anything to lose. A toolkit that restarts the container runtime is always serialized
//! ([`runtime_restart`]). A label that another user changes or removes is no update: the groups that `GpuNode.spec.current` records
//! are restored at once.
//!
//! What does not disrupt (resources, pull secrets, tolerations, …) changes the template in place and takes effect when the pod is
//! next created. A pod with an outdated template is deleted only if it cannot start: the new template may contain the cure
//! ([`recreate_pods`]).

pub mod decision;
pub mod driver_removal;
pub mod leaving;
pub mod mig;
pub mod pool;
pub mod recreate_pods;
pub mod release;
pub mod runtime_restart;
pub mod toolkit_removal;
pub mod toolkit_restart;
pub mod update;

use std::collections::BTreeMap;

use decision::PoolDecision;
use gpu_operator_crd::{PolicyName, PoolName};
use k8s_openapi::jiff::Timestamp;

use crate::assess::AssessedFleet;

/// The decisions for the fleet, by policy and pool.
pub type Rollout<'f> = BTreeMap<&'f PolicyName, BTreeMap<&'f PoolName, PoolDecision>>;

/// Returns the decisions for every pool of every policy.
#[must_use]
pub fn decide<'f>(fleet: &'f AssessedFleet<'_>, now: Timestamp) -> Rollout<'f> {
    let of_pool = |(pool, members): (&'f PoolName, &'f Vec<_>)| (pool, pool::decide(members, fleet.world, now));
    let policies = fleet.policies.iter();
    policies.map(|(policy, members)| (policy, members.pools.iter().map(of_pool).collect())).collect()
}
