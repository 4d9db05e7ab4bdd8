//! The plan: one pure function of (settings, catalogue, observed world, now), for the whole fleet at once. It says
//! what is to be written, and nothing where all is as it should be.

mod children;
mod cuda;
pub mod daemon_set;
mod device_plugin;
mod discover;
mod division;
mod drift;
mod driver;
mod enroll;
mod for_node;
mod for_policy;
mod foreign;
pub mod gfd;
mod gpu_node;
mod hash;
mod health;
mod host_driver;
mod host_traits;
mod images;
mod judge;
mod member;
mod misfit;
mod misnomer;
mod models;
mod node_health;
pub mod node_labels;
mod note;
mod policy;
pub mod pool;
mod precompiled;
mod promise;
mod proxy;
mod published;
mod questions;
mod rollout;
mod selinux;
mod share;
mod signal;
mod tell;
pub mod toolkit;
mod unpacked;
pub mod validation;
mod variant;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicyStatus, GpuNode};
use k8s_openapi::{
    api::{core::v1::Pod, node::v1::RuntimeClass},
    jiff::Timestamp,
};
use serde::Serialize;

pub use children::DaemonSetWrite;
use enroll::{Sets, Share, by_age, governs, known_models, name_of, opted_out, overlap_note};
pub use gpu_node::GpuNodeWrite;
use gpu_node::Unmanaged;
pub use node_health::NodeHealthWrite;
pub use node_labels::LabelWrite;
pub use questions::Questions;
pub use tell::{Subject, Transition};
use toolkit::removal::Removals;

use crate::{catalogue::Catalogue, settings::Settings, world::World};

/// What is to be written. Empty, but for what it tells of the fleet, where nothing is to be done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Plan {
    /// DaemonSets to apply, by name.
    pub daemon_sets: BTreeMap<String, DaemonSetWrite>,
    /// DaemonSets that no node names and no policy wants.
    pub prune: BTreeSet<String>,
    /// Pods to delete, because they cannot start as they were made and would as they are made now, or because they have
    /// done their work.
    pub renew: BTreeSet<String>,
    /// Pods to make: the tests by which nodes are validated.
    pub pods: BTreeMap<String, Pod>,
    /// RuntimeClasses to apply, by name.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// RuntimeClasses of ours that no node needs.
    pub prune_classes: BTreeSet<String>,
    /// Label writes, by node.
    pub labels: BTreeMap<String, LabelWrite>,
    /// What is to be written of the Nodes' health.
    pub node_health: BTreeMap<String, NodeHealthWrite>,
    /// GpuNode writes, by node.
    pub gpu_nodes: BTreeMap<String, GpuNodeWrite>,
    /// Policy statuses to write, by policy.
    pub policies: BTreeMap<String, ClusterGpuPolicyStatus>,
    /// Finalizers to put on (true) or take off (false), by policy.
    pub finalizers: BTreeMap<String, bool>,
    /// Transitions that people should hear of.
    pub events: Vec<Transition>,
    /// What has to be known before more can be decided.
    pub questions: Questions,
    /// When to plan again even if nothing changes.
    pub check_again: Option<Timestamp>,
    /// Every policy's status as it should be, written or not: what metrics show.
    #[serde(skip)]
    pub statuses: BTreeMap<String, ClusterGpuPolicyStatus>,
}

impl Plan {
    /// Whether there is nothing to write and nothing to ask.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            daemon_sets,
            prune,
            renew,
            pods,
            runtime_classes,
            prune_classes,
            labels,
            node_health,
            gpu_nodes,
            policies,
            finalizers,
            questions,
            ..
        } = self;
        daemon_sets.is_empty()
            && runtime_classes.is_empty()
            && prune_classes.is_empty()
            && prune.is_empty()
            && renew.is_empty()
            && pods.is_empty()
            && labels.is_empty()
            && node_health.is_empty()
            && gpu_nodes.is_empty()
            && policies.is_empty()
            && finalizers.is_empty()
            && questions.is_empty()
    }

    fn check_by(&mut self, at: Timestamp) {
        self.check_again = Some(self.check_again.map_or(at, |known| known.min(at)));
    }
}

/// Plans for the whole fleet.
#[must_use]
pub fn plan(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let policies = by_age(world);
    let models::Added { catalogue: with_models, conflicts } = models::added(catalogue, &policies);
    let catalogue = with_models.as_ref().unwrap_or(catalogue);
    let lulls = gpu_node::lulls(world.gpu_nodes.values().map(Arc::as_ref), now);
    let mut sets = Sets { catalogue, world, now, lulls, variants: HashMap::new(), policies: BTreeMap::new() };
    let pods = member::pods_by_node(world);
    let mut removals = Removals::of(world, now);
    let mut fleet: BTreeMap<&str, Share<'_>> = BTreeMap::new();
    for (name, node) in &world.nodes {
        let gpu_node = world.gpu_nodes.get(name).map(Arc::as_ref);
        if is_unreadable(world, name, gpu_node) {
            continue;
        }
        let of_node = pods.get(name.as_str()).map_or(&[][..], Vec::as_slice);
        let Some(discovery) = discover::discover(catalogue, node, gpu_node) else {
            for_node::unmanaged(&mut plan, &mut removals, (node, of_node), gpu_node, Unmanaged::NoGpu, None, now);
            continue;
        };
        let mut claims = policies.iter().copied().filter(|policy| governs(policy, node));
        let governing = claims.next();
        if opted_out(node) {
            for_node::unmanaged(
                &mut plan,
                &mut removals,
                (node, of_node),
                gpu_node,
                Unmanaged::OptedOut,
                discovery.model,
                now,
            );
            if let Some(policy) = governing {
                fleet.entry(name_of(policy)).or_default().opted_out += 1;
            }
            continue;
        }
        let Some(policy) = governing else {
            for_node::unmanaged(
                &mut plan,
                &mut removals,
                (node, of_node),
                gpu_node,
                Unmanaged::NoPolicy,
                discovery.model,
                now,
            );
            continue;
        };
        let others: Vec<&str> = claims.map(name_of).collect();
        for other in &others {
            fleet.entry(name_of(policy)).or_default().overlap(other, name_of(policy));
            fleet.entry(other).or_default().overlap(name_of(policy), name_of(policy));
        }
        let mut member = sets.enroll(policy, node, gpu_node, discovery, of_node.to_vec());
        member.notes.extend(overlap_note(name_of(policy), &others));
        fleet.entry(name_of(policy)).or_default().pools.entry(member.pool.clone()).or_default().push(member);
    }
    plan.renew.extend(validation::pods_to_end(world, &fleet));
    let models = known_models(&fleet);
    for policy in world.policies.values() {
        let share = fleet.remove(name_of(policy)).unwrap_or_default();
        let misfits = misfit::misfits(catalogue, policy, &models);
        let of_policy = (&misfits, conflicts.get(name_of(policy)).map(String::as_str));
        for_policy::policy(&mut plan, settings, policy, share, of_policy, world, now);
    }
    children::plan(&mut plan, settings, world, &sets);
    toolkit::class::plan(&mut plan, world, sets.all());
    plan.renew.extend(children::pods_to_renew(world, now));
    plan
}

/// Whether what governs a node, or what is known of it, is there but cannot be read: then it stays as it is.
fn is_unreadable(world: &World, name: &str, gpu_node: Option<&GpuNode>) -> bool {
    let policy = gpu_node.and_then(|gpu_node| gpu_node.spec.policy.as_ref());
    world.unreadable_gpu_nodes.contains(name) || policy.is_some_and(|policy| world.unreadable_policies.contains(policy))
}
