//! Before the first node of a pool moves to a revision, one node pulls the new images in a pod that does nothing else. So a missing image
//! or a rejecting registry is found while every node still works. Nodes with other systems, kernels or architectures have other revisions
//! and preflights.
//!
//! A few nodes try before the rollout is held, because one may have a problem of its own. The pods stay until a node has started the
//! images. Kubelet keeps trying, so the rollout continues once the image exists.

use std::{collections::BTreeMap, time::Duration};

use gpu_operator_crd::{NodeName, gpunode::StageRevisions, policy::Stage};

use super::goal::Goals;
use crate::{
    assess::{
        Assessment,
        member::Member,
        pod_failure::lacks_its_image,
        preflight::{Pull, name, pod_on, prefix, state},
    },
    clock::Clock,
    desired::driver::DriverChoice,
    revision,
    world::{DaemonSets, PodFacts, World},
};

/// How many nodes try to pull the images of a revision.
const MAX_PULLING: usize = 3;
/// After this time, a pod is replaced that kubelet ended before it had pulled its images, as on a full node.
const REPLACE_AFTER: Duration = Duration::from_mins(5);

#[derive(Clone, Debug, PartialEq)]
pub struct PreflightPod {
    pub node: NodeName,
    pub images: Vec<NewImage>,
}

/// An image that a node has not used so far.
#[derive(Clone, Debug, PartialEq)]
pub struct NewImage {
    pub container: String,
    pub image: String,
    /// As in the pods that use the image.
    pub pull_policy: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preflight {
    Passed,
    /// A node is pulling the images.
    Underway(String),
    /// The images cannot be pulled.
    Failed(String),
}

#[derive(Clone, Copy, Debug)]
pub struct Pool<'f> {
    pub members: &'f [Assessment<'f>],
    pub goals: &'f Goals,
    pub world: &'f World,
    /// How long a pull may take.
    pub limit: Duration,
    pub clock: &'f Clock,
}

#[derive(Clone, Debug, Default)]
pub struct Preflights {
    known: Vec<(StageRevisions, Preflight)>,
    /// The needed pods, by name.
    pub pods: BTreeMap<String, PreflightPod>,
}

impl Preflights {
    pub fn of(&mut self, member: &Member<'_>, goal: &StageRevisions, pool: Pool<'_>) -> Preflight {
        // What nodes return to was pulled before.
        if pool.goals.rolled_back {
            return Preflight::Passed;
        }
        if let Some((_, known)) = self.known.iter().find(|(known, _)| known == goal) {
            return known.clone();
        }
        let found = self.check(member, goal, pool);
        self.known.push((goal.clone(), found.clone()));
        found
    }

    fn check(&mut self, asking: &Member<'_>, goal: &StageRevisions, pool: Pool<'_>) -> Preflight {
        let rest = not_started(goal, pool);
        let new = |member: &Member<'_>| new_images(&rest, &member.have, &pool.world.daemon_sets);
        if new(asking).is_empty() {
            return Preflight::Passed;
        }
        let tried = tried(goal, pool);
        for (member, pod, pull) in &tried {
            if *pull == Pull::Done || !is_to_be_replaced(pod, pool) {
                self.need(pod.name.clone(), member, new(member));
            }
        }
        if tried.iter().any(|(.., pull)| *pull == Pull::Done) {
            return Preflight::Passed;
        }
        if let Some((member, ..)) = tried.iter().find(|(.., pull)| *pull == Pull::Underway) {
            return pulling(member);
        }
        let is_precompiled = asking.driver().is_some_and(DriverChoice::is_precompiled);
        if is_precompiled && tried.iter().any(|(_, pod, _)| lacks_its_image(pod)) {
            let message = "update pending: there is no precompiled driver for the kernel of this node";
            return Preflight::Underway(message.to_owned());
        }
        let members = pool.members.iter().map(|assessed| &assessed.member);
        let others = members.filter(|member| tried.iter().all(|(other, ..)| other.node.name != member.node.name));
        let able = others.filter(|member| may_try(member, goal, pool) && !new(member).is_empty());
        let next = able.min_by_key(|member| member.node.has_pressure);
        match (next, tried.first()) {
            (Some(member), _) if tried.len() < MAX_PULLING => {
                let pod = name(goal, &member.node.name);
                let refused = pool.world.refused_pods.get(&pod).map(|error| format!("update pending: {error}"));
                self.need(pod, member, new(member));
                refused.map_or_else(|| pulling(member), Preflight::Underway)
            }
            (_, Some((.., Pull::Failed(why)))) => Preflight::Failed(format!(
                "no node was updated, because the images of the new revision cannot be pulled: {why}"
            )),
            _ => Preflight::Passed,
        }
    }

    fn need(&mut self, name: String, member: &Member<'_>, images: Vec<NewImage>) {
        self.pods.insert(name, PreflightPod { node: member.node.name.clone(), images });
    }
}

/// Whether a pod that has not pulled its images is replaced.
fn is_to_be_replaced(pod: &PodFacts, pool: Pool<'_>) -> bool {
    let ended = pod.created.filter(|_| pod.end.is_some());
    ended.is_some_and(|created| pool.clock.passed(created.local(), REPLACE_AFTER))
}

/// Leaves out stages whose images a node of the pool has started.
fn not_started(goal: &StageRevisions, pool: Pool<'_>) -> StageRevisions {
    let mut rest = goal.clone();
    for stage in Stage::ALL {
        let is_of_goal = |pod: &PodFacts| pod.revision.as_ref() == goal.get(stage);
        let has_started = |pod: &PodFacts| is_of_goal(pod) && (pod.has_started() || pod.has_failed());
        if pool.members.iter().any(|assessed| assessed.member.pods_of(stage).any(has_started)) {
            *rest.get_mut(stage) = None;
        }
    }
    rest
}

/// Returns the nodes that have a pod for a revision, and the state of its images.
fn tried<'f>(goal: &StageRevisions, pool: Pool<'f>) -> Vec<(&'f Member<'f>, &'f PodFacts, Pull)> {
    let prefix = prefix(goal);
    let pull_on = |member: &Member<'_>, pod: &PodFacts| match state(pod, pool.limit, pool.clock) {
        Pull::Underway if !member.node.ready => Pull::Failed(format!("node {} is not ready", member.node.name)),
        pull => pull,
    };
    let members = pool.members.iter().map(|assessed| &assessed.member);
    members.filter_map(|member| pod_on(member, &prefix).map(|pod| (member, pod, pull_on(member, pod)))).collect()
}

fn may_try(member: &Member<'_>, goal: &StageRevisions, pool: Pool<'_>) -> bool {
    let moves_there = member.want().is_some_and(|want| pool.goals.of_member(member, want) == *goal);
    moves_there && member.node.ready && !member.node.deleting && member.untolerated.is_none()
}

fn pulling(member: &Member<'_>) -> Preflight {
    let node = &member.node.name;
    Preflight::Underway(format!("update pending: the images of the new revision are being pulled on node {node}"))
}

/// Returns the images of some revisions that other revisions do not use.
fn new_images(goal: &StageRevisions, have: &StageRevisions, sets: &DaemonSets) -> Vec<NewImage> {
    let had: Vec<NewImage> = Stage::ALL.into_iter().flat_map(|stage| images(stage, have, sets)).collect();
    let mut new: Vec<NewImage> = Vec::new();
    let changed = Stage::ALL.into_iter().filter(|stage| goal.get(*stage) != have.get(*stage));
    for image in changed.flat_map(|stage| images(stage, goal, sets)) {
        if !had.iter().chain(&new).any(|known| known.image == image.image) {
            new.push(image);
        }
    }
    new
}

fn images(stage: Stage, revisions: &StageRevisions, sets: &DaemonSets) -> Vec<NewImage> {
    let pod = revisions.get(stage).and_then(|revision| revision::pod_spec(sets, stage, revision));
    let containers = pod.into_iter().flat_map(|pod| pod.init_containers.iter().flatten().chain(&pod.containers));
    let named = containers.filter_map(|container| {
        Some(NewImage {
            container: format!("{}-{}", stage.as_str(), container.name),
            image: container.image.clone()?,
            pull_policy: container.image_pull_policy.clone(),
        })
    });
    named.collect()
}
