//! The rollout: which node is updated next, which groups each node's labels should name, and which pods are recreated.

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
