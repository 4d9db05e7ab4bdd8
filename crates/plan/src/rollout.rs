//! The rollout: which nodes are updated, which groups each node's labels should name, and which pods are recreated.
//!
//! A revision is a hash of all that disrupts: driver version, images, environment, arguments. It is part of the DaemonSet's name and
//! of the node's label, so a node is updated, and returns, by one write of labels:
//!
//! ```text
//!               goal ≠ had, the node has a slot in the ledger of its policy
//!     ┌──────┐ ────────────────────────────────────────▶ ┌─────────┐  mode Leave: no pod uses a GPU of the node, the probe
//!     │ Idle │   (nothing uses what changes: straight to  │  Await  │  lists other programs; mode Await: it is cordoned, and
//!     └──────┘ ◀────────────── Replace) ──────────────── └────┬────┘  pods and programs are awaited
//!        ▲      something uses the GPUs (Leave), or still     │ nothing does
//!        │      does at the deadline (Await)                  ▼
//!        │                                               ┌─────────┐  device plugin removed, probe releases NVML,
//!        │ ◀──────────────────────────────────────────── │ Release │  DaemonSets give way, then a second look for GPU
//!        │      a GPU pod or a program came in between   └────┬────┘  pods and other programs
//!        │                                                    │ nothing holds the driver
//!        │                                                    ▼
//!        │     ready, and every stage proven             ┌─────────┐
//!        │ ◀──────────────────────────────────────────── │ Replace │  labels name the new groups; on the node:
//!        │                                               └────┬────┘  guard ─▶ driver ─▶ toolkit ─▶ device plugin
//!        │                                                    │ not ready at the deadline
//!        └──────────────── listed as failed ◀────────────┘
//! ```
//!
//! [`ledger`] lists the nodes that may be disrupted, [`budget`] limits their number, [`policy`] orders them, [`wave`] lets canary nodes come
//! first, [`goal`] decides whether nodes move to what the policy wants or back, and [`turn`] is the picture above. A pool halts while
//! `maxFailures` of its updates have failed: nodes that fail in their turn, whose turn has failed, or that are worse than before it.
//!
//! An update that leaves the driver unchanged waits for no pod, except where it repartitions GPUs by MIG. A node that has no group yet
//! gets the wanted ones at once, and so does one that has failed and offers no GPU: nothing is taken from any pod there. A toolkit that
//! restarts the container runtime is always serialized ([`runtime_restart`]). A label that another user changes or removes is no update:
//! the groups that `GpuNode.spec.current` records are restored at once.
//!
//! What does not disrupt (resources, pull secrets, tolerations, …) changes the template in place and takes effect when the pod is
//! next created. A pod with an outdated template is deleted only if it cannot start: the new template may contain the cure
//! ([`recreate_pods`]).

pub mod budget;
pub mod change;
pub mod decision;
pub mod driver_removal;
pub mod eviction;
pub mod failures;
pub mod goal;
pub mod leaving;
pub mod ledger;
pub mod mig;
pub mod policy;
pub mod pool;
pub mod preflight;
pub mod recreate_pods;
pub mod release;
pub mod runtime_restart;
pub mod terms;
pub mod toolkit_removal;
pub mod toolkit_restart;
pub mod turn;
pub mod wave;
pub mod window;

use std::{collections::BTreeMap, sync::LazyLock};

use decision::PolicyDecision;
use gpu_operator_crd::{NodeName, PolicyName};
use k8s_openapi::jiff::Timestamp;

use crate::assess::{AssessedFleet, PolicyMembers};

/// The decisions for the fleet.
#[derive(Debug, Default)]
pub struct Rollout<'f> {
    /// Those for the members of each policy.
    pub policies: BTreeMap<&'f PolicyName, PolicyDecision<'f>>,
    /// The numbers of slots that must be spent because their nodes are not where they were when they got them.
    pub strays: BTreeMap<NodeName, u32>,
}

/// Returns the decisions for every pool of every policy. `may_evict` is whether the operator has the right to evict pods.
pub fn decide<'f>(fleet: &'f AssessedFleet<'f>, may_evict: bool, now: Timestamp) -> Rollout<'f> {
    static NO_MEMBERS: LazyLock<PolicyMembers<'static>> = LazyLock::new(PolicyMembers::default);
    let mut rollout = Rollout::default();
    for (name, policy) in &fleet.world.policies {
        let members = fleet.policies.get(name).map_or(&NO_MEMBERS.pools, |members| &members.pools);
        let decision = policy::decide(policy, members, fleet.world, may_evict, now);
        for (node, turn) in &decision.strays {
            let known = rollout.strays.entry(node.clone()).or_default();
            *known = (*known).max(*turn);
        }
        rollout.policies.insert(name, decision);
    }
    // The node of such a slot may be a member of another pool.
    let pools = rollout.policies.values_mut().flat_map(|policy| policy.pools.values_mut());
    for nodes in pools.map(|pool| &mut pool.nodes) {
        for (node, turn) in &rollout.strays {
            if let Some(decision) = nodes.get_mut(node) {
                decision.turns = decision.turns.max(*turn);
            }
        }
    }
    rollout
}
