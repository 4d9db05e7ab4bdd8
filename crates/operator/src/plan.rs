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
mod foreign;
mod gpu_node;
mod hash;
mod health;
mod images;
mod judge;
mod member;
mod misfit;
mod models;
mod node_health;
pub mod node_labels;
mod note;
mod policy;
mod pool;
mod precompiled;
mod promise;
mod proxy;
mod rollout;
mod share;
mod signal;
mod tell;
pub mod toolkit;
mod validation;
mod variant;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use gpu_operator_crd::{ClusterGpuPolicy, ClusterGpuPolicyStatus, GpuNode, GpuNodeSpec, Phase, reason::Reason};
use k8s_openapi::{
    api::{core::v1::Pod, node::v1::RuntimeClass},
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;
use serde::Serialize;

pub use children::DaemonSetWrite;
use enroll::{Sets, Share, by_age, governs, known_models, name_of, opted_out, overlap_note};
pub use gpu_node::GpuNodeWrite;
use gpu_node::Unmanaged;
use judge::Verdict;
use member::Member;
use misfit::Misfits;
pub use node_health::NodeHealthWrite;
pub use node_labels::LabelWrite;
use policy::Counted;
use rollout::Decision;
use tell::{annotate, node_transition, ready_transition};

use crate::{
    catalogue::Catalogue,
    moment::later,
    settings::{ASK_AGAIN, PROGRESS_DEADLINE, Settings},
    world::{NodeFacts, World},
};

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
    /// Nodes whose pods have to be looked at before more can be decided; see [`World::gpu_pods`].
    pub questions: BTreeSet<String>,
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

/// A transition that people should hear of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Transition {
    /// Whose.
    pub subject: Subject,
    /// In one word.
    pub reason: Reason,
    /// In a sentence.
    pub message: String,
}

/// Whose transition it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Subject {
    /// A Node, by name and uid.
    Node(String, String),
    /// A policy, by name and uid.
    Policy(String, String),
    /// An object of somebody else's in a namespace, such as a pod.
    Namespaced {
        /// Such as `apps/v1`.
        api_version: String,
        /// Such as `ReplicaSet`.
        kind: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// Its uid.
        uid: String,
    },
}

impl Subject {
    /// The uid of the object.
    #[must_use]
    pub fn uid(&self) -> &str {
        match self {
            Self::Node(_, uid) | Self::Policy(_, uid) | Self::Namespaced { uid, .. } => uid,
        }
    }
}

/// Plans for the whole fleet.
#[must_use]
pub fn plan(settings: &Settings, catalogue: &Catalogue, world: &World, now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let policies = by_age(world);
    let models::Added { catalogue: with_models, conflicts } = models::added(catalogue, &policies);
    let catalogue = with_models.as_ref().unwrap_or(catalogue);
    let mut sets = Sets { catalogue, world, now, variants: HashMap::new(), policies: BTreeMap::new() };
    let pods = member::pods_by_node(world);
    let mut fleet: BTreeMap<&str, Share<'_>> = BTreeMap::new();
    for (name, node) in &world.nodes {
        let gpu_node = world.gpu_nodes.get(name).map(Arc::as_ref);
        if is_unreadable(world, name, gpu_node) {
            continue;
        }
        let Some(discovery) = discover::discover(catalogue, node, gpu_node) else {
            unmanaged(&mut plan, node, gpu_node, Unmanaged::NoGpu, None, now);
            continue;
        };
        let mut claims = policies.iter().copied().filter(|policy| governs(policy, node));
        let governing = claims.next();
        if opted_out(node) {
            unmanaged(&mut plan, node, gpu_node, Unmanaged::OptedOut, discovery.model, now);
            if let Some(policy) = governing {
                fleet.entry(name_of(policy)).or_default().opted_out += 1;
            }
            continue;
        }
        let Some(policy) = governing else {
            unmanaged(&mut plan, node, gpu_node, Unmanaged::NoPolicy, discovery.model, now);
            continue;
        };
        let others: Vec<&str> = claims.map(name_of).collect();
        for other in &others {
            fleet.entry(name_of(policy)).or_default().overlap(other, name_of(policy));
            fleet.entry(other).or_default().overlap(name_of(policy), name_of(policy));
        }
        let pods = pods.get(name.as_str()).cloned().unwrap_or_default();
        let mut member = sets.enroll(policy, node, gpu_node, discovery, pods);
        member.notes.extend(overlap_note(name_of(policy), &others));
        fleet.entry(name_of(policy)).or_default().pools.entry(member.pool.clone()).or_default().push(member);
    }
    plan.renew.extend(validation::pods_to_end(world, &fleet));
    let models = known_models(&fleet);
    for policy in world.policies.values() {
        let share = fleet.remove(name_of(policy)).unwrap_or_default();
        let misfits = misfit::misfits(catalogue, policy, &models);
        let of_policy = (&misfits, conflicts.get(name_of(policy)).map(String::as_str));
        plan_policy(&mut plan, settings, policy, share, of_policy, world, now);
    }
    children::plan(&mut plan, settings, world, &sets);
    toolkit::class::plan(&mut plan, world, sets.all());
    plan.renew.extend(children::stuck_pods(world, now));
    plan.renew.extend(children::undone_pods(world));
    plan
}

/// Whether what governs a node, or what is known of it, is there but cannot be read: then it stays as it is.
fn is_unreadable(world: &World, name: &str, gpu_node: Option<&GpuNode>) -> bool {
    let policy = gpu_node.and_then(|gpu_node| gpu_node.spec.policy.as_ref());
    world.unreadable_gpu_nodes.contains(name) || policy.is_some_and(|policy| world.unreadable_policies.contains(policy))
}

/// A node that no policy governs: nothing of ours stays on it.
fn unmanaged(
    plan: &mut Plan,
    node: &NodeFacts,
    gpu_node: Option<&GpuNode>,
    why: Unmanaged,
    model: Option<String>,
    now: Timestamp,
) {
    if let Some(write) = node_labels::none(node).write {
        plan.labels.insert(node.name.clone(), write);
    }
    let health = node_health::none(node);
    if !health.is_empty() {
        plan.node_health.insert(node.name.clone(), health);
    }
    let Some(gpu_node) = gpu_node else {
        return;
    };
    let status = gpu_node::unmanaged_status(gpu_node, node, why, model, now);
    let write = GpuNodeWrite {
        spec: gpu_node::spec_write(Some(gpu_node), node, GpuNodeSpec::default()),
        status: gpu_node::status_write(Some(gpu_node), status),
    };
    if !write.is_empty() {
        plan.gpu_nodes.insert(node.name.clone(), write);
    }
}

fn plan_policy(
    plan: &mut Plan,
    settings: &Settings,
    policy: &ClusterGpuPolicy,
    share: Share<'_>,
    (misfits, models): (&Misfits, Option<&str>),
    world: &World,
    now: Timestamp,
) {
    let name = policy.name_any();
    let deadline = policy.spec.readiness.progress_deadline.map_or(PROGRESS_DEADLINE, Into::into);
    let deadline = SignedDuration::try_from(deadline).unwrap_or(SignedDuration::MAX);
    let mut counted = Vec::new();
    let mut halted = BTreeMap::new();
    for (pool, members) in &share.pools {
        let verdicts: Vec<_> = members.iter().map(|member| judge::judge(member, world, now)).collect();
        let judged: Vec<_> = members.iter().zip(&verdicts).collect();
        let decision = rollout::decide(&judged, world, now);
        plan.questions.extend(decision.questions);
        plan.renew.extend(decision.renew);
        if decision.ask_again {
            plan.check_by(later(now, ASK_AGAIN));
        }
        if let Some(why) = decision.halted {
            halted.insert(pool.clone(), why);
        }
        let awaits_test =
            |verdict: &Verdict| verdict.phase == Phase::Validation && verdict.reason != Reason::NodeNotReady;
        let tests = judged.iter().map(|(member, verdict)| (*member, awaits_test(verdict)));
        plan.pods.extend(validation::pods_to_make(settings, tests));
        for (member, verdict) in judged {
            let Some(decision) = decision.nodes.get(&member.node.name) else {
                continue;
            };
            counted.push(plan_member(plan, policy, member, verdict, decision, deadline, now));
        }
    }
    finalizer(plan, policy, world);
    let trouble = policy::Trouble {
        halted: &halted,
        misfits,
        models,
        refused_writes: &world.refused_writes,
        probe_refusal: judge::probe_refusal(world),
    };
    let others = policy::Others { opted_out: share.opted_out, overlaps: share.overlaps.into_values().collect() };
    let status = policy::status(policy, &counted, others, trouble, now);
    let before = policy.status.clone().unwrap_or_default();
    if before != status {
        if policy::is_ready(&before) != policy::is_ready(&status) {
            plan.events.extend(ready_transition(policy, &status));
        }
        plan.policies.insert(name.clone(), status.clone());
    }
    plan.statuses.insert(name, status);
}

fn plan_member(
    plan: &mut Plan,
    policy: &ClusterGpuPolicy,
    member: &Member<'_>,
    verdict: &Verdict,
    decision: &Decision,
    deadline: SignedDuration,
    now: Timestamp,
) -> Counted {
    let wanted_labels = pool::published(policy, member.named_pool, member.model());
    let cuda = cuda::of(member, &decision.labels);
    let of_label = cuda::label(member, &decision.labels);
    let known = node_labels::Known { model: member.model(), cuda: of_label.as_deref() };
    let labels = node_labels::of(member.node, known, &member.pool, &decision.labels, &wanted_labels);
    let verdict = annotate(verdict, decision, &labels.conflicts, member);
    for again in member.health.check_again.into_iter().chain(member.trial.check_again.filter(|at| now < *at)) {
        plan.check_by(again);
    }
    let (status, again) = gpu_node::member_status(member, &verdict, (&labels.published, cuda), deadline, now);
    if let Some(again) = again {
        plan.check_by(again);
    }
    if let Some(by) = member.driver_shows_by().filter(|by| now < *by) {
        plan.check_by(by);
    }
    // Judgements that need a moment to be sure of themselves look again after it.
    if !status.is_ready() && status.reason.is_some_and(|reason| !reason.is_failure()) {
        plan.check_by(later(now, ASK_AGAIN));
    }
    let awaited = member.is_awaited(now);
    if awaited {
        plan.check_by(member.report_due().unwrap_or(now));
    }
    let spec = gpu_node::spec_write(member.gpu_node, member.node, gpu_node::member_spec(member, decision));
    let status_write = gpu_node::status_write(member.gpu_node, status.clone());
    let write = GpuNodeWrite { spec, status: status_write };
    if !write.is_empty() && !awaited {
        if write.status.is_some() {
            plan.events.extend(node_transition(member, &status));
        }
        plan.gpu_nodes.insert(member.node.name.clone(), write);
    }
    let health = node_health::of(member, now);
    if !health.is_empty() {
        plan.node_health.insert(member.node.name.clone(), health);
    }
    if let Some(pod) = node_health::plugin_to_restart(member, now) {
        plan.events.push(Transition {
            subject: Subject::Node(member.node.name.clone(), member.node.uid.clone()),
            reason: Reason::DevicePluginRestarted,
            message: format!("GPUs are well again and pod {pod} withholds them, so it is started anew"),
        });
        plan.renew.insert(pod);
    }
    // A label that says nothing of the model yet can wait for the one that does.
    if let Some(write) = labels.write.filter(|_| !awaited || member.model().is_some()) {
        plan.labels.insert(member.node.name.clone(), write);
    }
    Counted {
        node: member.node.name.clone(),
        pool: member.pool.clone(),
        serves: member.node.serves(),
        current: member.want().is_none_or(|want| want == member.have),
        driver_version: member.driver().and_then(|driver| driver.version()).map(str::to_owned),
        fault: member
            .wanted
            .as_ref()
            .and_then(|wanted| wanted.as_ref().err())
            .map(|fault| (fault.reason, fault.message.clone())),
        status,
    }
}

/// On before the first label is written; off once nothing tells of the policy any more: no GpuNode and no DaemonSet,
/// which would otherwise go with it, from under nodes that another policy has taken over and not moved yet.
fn finalizer(plan: &mut Plan, policy: &ClusterGpuPolicy, world: &World) {
    let name = policy.name_any();
    let there = policy::has_finalizer(policy);
    if policy.metadata.deletion_timestamp.is_none() {
        if !there {
            plan.finalizers.insert(name, true);
        }
        return;
    }
    let governs = |gpu_node: &GpuNode| {
        gpu_node.spec.policy.as_ref() == Some(&name) && world.nodes.contains_key(&gpu_node.name_any())
    };
    let left = world.gpu_nodes.values().any(|gpu_node| governs(gpu_node))
        || world.daemon_sets.values().any(|set| set.policy.as_ref() == Some(&name));
    if there && !left {
        plan.finalizers.insert(name, false);
    }
}
