//! Spec and status of GpuNodes.

use gpu_operator_crd::{
    GpuNode, GpuNodeSpec, GpuNodeStatus, HealthRules, NodeConditionType, Phase,
    gpunode::GpuCounts,
    health::HealthState,
    keys,
    policy::{Labels, Stage},
    reason::Reason,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time},
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use crate::{
    assess::{
        Assessment,
        member::Member,
        pod_failure::{pod_failure, silent_probe},
        verdict::Verdict,
    },
    clock::Clock,
    desired::{
        driver::{DriverChoice, is_known_root},
        expected_resources::ExpectedResources,
        toolkit::ToolkitChoice,
    },
    ground::foreign_stacks::ForeignStacks,
    inventory::{
        UnmanagedNode,
        membership::{Unmanaged, name_of},
    },
    note::{listed, shown},
    output::{
        body::{Body, SpecWrite},
        gpu_node_conditions, urgency,
        write::Write,
    },
    rollout::{
        decision::Decision,
        leaving::{self, Leaving},
    },
    time::add,
    world::{NodeFacts, OwnCondition, World},
};

#[derive(Debug)]
pub struct Published<'a> {
    /// Those outside this operator's prefix.
    pub labels: &'a Labels,
    /// The highest CUDA version that the driver supports.
    pub cuda: Option<String>,
    /// Of the GpuNode, after the plan's write of its spec.
    pub generation: Option<i64>,
    pub health: Option<&'a OwnCondition>,
}

/// The Node, with which the GpuNode is deleted.
pub fn owner(node: &NodeFacts) -> OwnerReference {
    OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Node".to_owned(),
        name: node.name.to_string(),
        uid: node.uid.clone(),
        ..OwnerReference::default()
    }
}

/// Returns `None` if spec and owner are as desired. A bare GpuNode gets its owner together with its first spec.
pub fn spec_write(gpu_node: Option<&GpuNode>, node: &NodeFacts, spec: GpuNodeSpec) -> Option<SpecWrite> {
    let is_bare = spec == GpuNodeSpec::default();
    let there = gpu_node.is_some_and(|gpu_node| {
        gpu_node.spec == spec && (is_bare || gpu_node.owner_references().iter().any(|present| present.uid == node.uid))
    });
    (!there).then(|| {
        let before = gpu_node.map(|gpu_node| &gpu_node.spec);
        let is_moving = before.is_some_and(|before| before.rollout.is_some());
        let updates_begun = before.map_or(0, |before| before.updates_begun);
        let follows_ledger = is_moving != spec.rollout.is_some() || updates_begun != spec.updates_begun;
        let mut records = spec.current.clone().unwrap_or_default();
        for stage in Stage::ALL {
            let known = before.and_then(|before| before.current.as_ref()?.get(stage));
            records.get_mut(stage).take_if(|revision| Some(&*revision) == known);
        }
        let generation = gpu_node.and_then(|gpu_node| gpu_node.metadata.generation);
        SpecWrite {
            spec,
            owner: owner(node),
            uid: gpu_node.and_then(ResourceExt::uid),
            records,
            generation,
            follows_ledger,
        }
    })
}

pub fn generation(gpu_node: Option<&GpuNode>, write: Option<&SpecWrite>) -> Option<i64> {
    let Some(gpu_node) = gpu_node else { return Some(1) };
    let changes = write.is_some_and(|write| write.spec != gpu_node.spec);
    gpu_node.metadata.generation.map(|generation| generation + i64::from(changes))
}

pub fn member_spec(member: &Member<'_>, decision: &Decision) -> GpuNodeSpec {
    let before = || member.gpu_node.map(|gpu_node| gpu_node.spec.clone()).unwrap_or_default();
    let root = |choice: &DriverChoice| Some(choice.root().to_owned()).filter(|root| !is_known_root(root));
    GpuNodeSpec {
        policy: Some(name_of(member.policy)),
        pool: Some(member.pool.name.clone()),
        wanted: member.want().cloned().unwrap_or_else(|| before().wanted),
        current: Some(decision.labels.clone()),
        rollout: decision.rollout.clone(),
        updates_begun: decision.updates_begun,
        last_update: decision.last_update.clone(),
        not_before: decision.not_before.map(Time),
        release_driver: decision.release,
        report_holders: decision.report_holders,
        driver_root: member.driver().map_or_else(|| before().driver_root, root),
        health: (member.health_policy.rules != HealthRules::default()).then(|| member.health_policy.rules.clone()),
    }
}

/// Returns the desired status without the report.
pub fn member_status(
    assessment: &Assessment<'_>,
    mut verdict: Verdict,
    published: Published<'_>,
    deadline: SignedDuration,
    clock: &Clock,
) -> GpuNodeStatus {
    let Assessment { member, validation, missing_image, broken_stage, .. } = assessment;
    let before = member.status();
    let waits = verdict.phase != Phase::Ready && !verdict.reason.stops_the_clock();
    let same_phase = before.filter(|before| before.phase == verdict.phase && before.reason.is_some());
    // The phase's deadline counts from the same time as long as the phase lasts, whatever its reasons, unless the phase restarts.
    let goes_on = same_phase.filter(|before| !restarts(member, before, &verdict));
    let begun = goes_on.and_then(|before| before.progressing_since.as_ref()).map(|time| time.0);
    let begun = begun.or_else(|| begun_unwritten(member, &verdict)).unwrap_or_else(|| clock.now());
    let due = add(begun, deadline);
    if waits && clock.reached(due) && !verdict.reason.is_failure() {
        let message = format!(
            "phase {} exceeded readiness.progressDeadline ({:#}); last state: {}",
            verdict.phase.as_str(),
            deadline,
            verdict.message
        );
        verdict = Verdict { reason: Reason::ProgressDeadlineExceeded, message, ..verdict };
    }
    let since = same_phase
        .filter(|before| before.reason() == Some(verdict.reason))
        .and_then(|before| before.since.clone())
        // A status that is not written yet must not differ in every plan, because the policy already reports it.
        .or_else(|| member.report_awaited_since().filter(|_| member.is_awaited(clock)).map(Time))
        .unwrap_or(Time(clock.now()));
    let gpus = counts(assessment, &verdict);
    let known = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    GpuNodeStatus {
        observed_generation: published.generation,
        conditions: gpu_node_conditions::of(
            &verdict,
            broken_stage.as_ref(),
            published.health,
            published.generation,
            known,
            clock,
        ),
        report: None,
        model: member.model().map(str::to_owned),
        health: member.health.state,
        cuda: published.cuda,
        missing_image: missing_image.clone(),
        gpus,
        phase: verdict.phase,
        reason: Some(verdict.reason.into()),
        message: shown(&verdict.message),
        waits_on: verdict.waits_on,
        since: Some(since),
        deadline: waits.then_some(Time(due)),
        progressing_since: waits.then_some(Time(begun)),
        validation: validation.record.clone(),
        foreign: member.external.remembered(),
        host_runtime: match member.toolkit() {
            Some(ToolkitChoice::Host(runtime)) => Some(runtime.clone()),
            Some(_) => None,
            None => before.and_then(|before| before.host_runtime.clone()),
        },
        cdi_disabled: member.disables_cdi,
        past_resource_names: past_resource_names(member.node, before, member.resource_layout.resource.as_deref()),
        published_labels: published.labels.clone(),
    }
}

/// Returns the begin of a transient phase that is not written yet because it follows another one: when the node's last pod was created or
/// started, at the latest.
fn begun_unwritten(member: &Member<'_>, verdict: &Verdict) -> Option<Timestamp> {
    let is_written = |before: &GpuNodeStatus| before.phase == verdict.phase;
    let before = member.status().filter(|before| before.deadline.is_some() && !is_written(before))?;
    let follows =
        urgency::is_transient(before.phase, before.reason()?) && urgency::is_transient(verdict.phase, verdict.reason);
    let since = before.since().filter(|_| follows)?;
    Some(member.last_pod_activity().map_or(since, |activity| activity.max(since)))
}

/// A phase restarts, although it is the same, if a failure is resolved or another revision is desired.
fn restarts(member: &Member<'_>, before: &GpuNodeStatus, verdict: &Verdict) -> bool {
    let failed = before.reason().filter(|reason| reason.is_failure() && *reason != Reason::ProgressDeadlineExceeded);
    let cured = failed.is_some() && !verdict.reason.is_failure();
    let known = member.gpu_node.map(|gpu_node| &gpu_node.spec.wanted);
    cured || member.want().is_some_and(|want| known != Some(want))
}

/// Without the generation that the status describes.
pub fn unmanaged_status(
    stacks: &ForeignStacks<'_>,
    unmanaged: &UnmanagedNode<'_>,
    leaving: Leaving<'_>,
    clock: &Clock,
) -> GpuNodeStatus {
    let (node, gpu_node) = (unmanaged.node, unmanaged.gpu_node);
    let before = gpu_node.and_then(|gpu_node| gpu_node.status.clone()).unwrap_or_default();
    let mut gpus = GpuCounts { allocatable: node.allocatable.total(), ..before.gpus.clone() };
    gpus.by_claims &= stacks.has_slices(&node.name);
    if leaving.stays() {
        return leaving_status(stacks.world, unmanaged, leaving, GpuNodeStatus { gpus, ..before }, clock);
    }
    let (reason, message) = match unmanaged.why {
        Unmanaged::NoGpu => (Reason::NoPolicy, "the node has no NVIDIA GPU".to_owned()),
        Unmanaged::Unreported => {
            let probe = unmanaged.probe_pod();
            let failure = probe.and_then(|pod| pod_failure(pod, clock));
            (Reason::ProbeMissing, silent_probe(probe, failure, ""))
        }
        Unmanaged::NoPolicy => (
            Reason::NoPolicy,
            "no policy governs this node; create a ClusterGpuPolicy whose nodeSelector matches it".to_owned(),
        ),
        Unmanaged::OptedOut => (
            Reason::OptedOut,
            format!(
                "label {} excludes this node from all policies; remove the label to include the node again",
                keys::MANAGED
            ),
        ),
    };
    let same = (before.reason() == Some(reason)).then(|| before.since.clone()).flatten();
    gpus.expected = None;
    gpus.resources = std::collections::BTreeMap::new();
    gpus.summary = String::new();
    GpuNodeStatus {
        model: unmanaged.model.clone(),
        gpus,
        phase: Phase::Unmanaged,
        reason: Some(reason.into()),
        message,
        since: same.or(Some(Time(clock.now()))),
        past_resource_names: past_resource_names(node, Some(&before), None),
        ..GpuNodeStatus::default()
    }
}

/// For a node that keeps its GPU stack for now. The recorded state stays, in case a policy governs the node again.
fn leaving_status(
    world: &World,
    unmanaged: &UnmanagedNode<'_>,
    leaving: Leaving<'_>,
    before: GpuNodeStatus,
    clock: &Clock,
) -> GpuNodeStatus {
    if leaving == Leaving::Unknown && before.phase == Phase::Unmanaged && before.reason.is_some() {
        // What was found when the pods were last listed is still the best that is known.
        return GpuNodeStatus { report: None, ..before };
    }
    let since = leaving::since(&before);
    let former = leaving::former_policy(world, unmanaged);
    let cause = match (unmanaged.why, former) {
        (Unmanaged::OptedOut, _) => format!("label {} excludes this node from all policies", keys::MANAGED),
        (_, None) => "no policy governs this node any more".to_owned(),
        (_, Some(policy)) if policy.metadata.deletion_timestamp.is_some() => {
            format!("policy {:?} is being deleted", name_of(policy))
        }
        (_, Some(policy)) => format!("policy {:?} no longer selects this node", name_of(policy)),
    };
    let (message, waits_on) = match leaving {
        Leaving::InUse(pods) => {
            let pods: Vec<_> = pods.iter().map(|pod| pod.name.clone()).collect();
            let message = format!(
                "{cause}; its GPU stack is kept until no pod uses a GPU of this node; in use by {}",
                listed(&pods)
            );
            (message, pods.into_iter().take(10).collect())
        }
        _ => (
            format!("{cause}; its GPU stack is kept for a minute, and then until no pod uses a GPU of this node"),
            Vec::new(),
        ),
    };
    GpuNodeStatus {
        report: None,
        conditions: Vec::new(),
        phase: Phase::Unmanaged,
        reason: Some(Reason::Leaving.into()),
        message,
        waits_on,
        since: Some(Time(since.unwrap_or_else(|| clock.now()))),
        deadline: None,
        progressing_since: None,
        ..before
    }
}

fn counts(assessment: &Assessment<'_>, verdict: &Verdict) -> GpuCounts {
    let member = &assessment.member;
    // GPUs that kubelet offers with a broken driver cannot be used.
    let broken =
        verdict.phase == Phase::Driver && assessment.against_driver.is_some() || verdict.reason == Reason::CdiDisabled;
    let allocatable = if broken { 0 } else { member.allocatable() };
    let seen = &member.discovery.seen;
    let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
    let expected = member.expected_units().map_or_else(|| "?".to_owned(), |units| units.to_string());
    GpuCounts {
        expected: member.expected_units(),
        allocatable,
        // Until kubelet has deleted the slices, they are known as this operator's.
        by_claims: member.resource_layout.by_claims
            || member.published.has_slices && member.status().is_some_and(|before| before.gpus.by_claims),
        resources: member.expected_resources.as_ref().map(ExpectedResources::named).unwrap_or_default(),
        most_seen: seen.most,
        seen_at: owned(&seen.at),
        seen_device_ids: owned(&seen.device_ids),
        seen_boot_id: seen.boot_id.to_owned(),
        seen_on: seen.most.map(|_| member.node.uid.clone()),
        unhealthy: member.health.unhealthy,
        degraded: member.health.degraded,
        unknown: member.health.unknown,
        summary: format!("{allocatable}/{expected}"),
    }
}

/// Returns `None` if only the report differs.
pub fn status_write(gpu_node: Option<&GpuNode>, node: &NodeFacts, status: &GpuNodeStatus) -> Option<Write> {
    let unwritten = GpuNodeStatus::default();
    let before = gpu_node.and_then(|gpu_node| gpu_node.status.as_ref()).unwrap_or(&unwritten);
    // While a node is being installed, its health is not worth a write; it is included in the next one. The health of a ready node is
    // kept while it is not reported, as after a reboot.
    let is_kept = match (before.health, status.health) {
        (None, Some(HealthState::Healthy)) => !status.is_ready(),
        (Some(HealthState::Healthy), None) => status.is_ready(),
        _ => false,
    };
    let is_health = |condition: &Condition| condition.type_ == NodeConditionType::Healthy.as_str();
    let holds = |(known, new): (&Condition, &Condition)| known == new || is_kept && is_health(known) && is_health(new);
    let same = before.progress() == status.progress()
        && (before.health == status.health || is_kept)
        && before.conditions.len() == status.conditions.len()
        && before.conditions.iter().zip(&status.conditions).all(holds);
    (!same).then(|| {
        let write = Write::new(&node.name, Body::Status(Box::new(status.clone())));
        Write { urgency: urgency::of_node(before, status), ..write }
    })
}

/// As in the schema.
const MAX_RESOURCE_NAMES: usize = 16;

/// Returns the resource names, other than NVIDIA's, by which pods may have been given GPUs; the policy's present one is last. Pods outlive
/// the policy, so an earlier name is dropped only once the Node does not list it: kubelet lists a name with amount zero while its plugin
/// restarts, and as long as a container may hold a device.
pub fn past_resource_names(node: &NodeFacts, before: Option<&GpuNodeStatus>, offered: Option<&str>) -> Vec<String> {
    let is_listed = |name: &String| node.allocatable.names().any(|listed| listed == name.as_str());
    let known = before.map(|before| before.past_resource_names.as_slice()).unwrap_or_default();
    let known = known.iter().filter(|name| Some(name.as_str()) != offered && is_listed(name));
    let mut names: Vec<String> = known.cloned().chain(offered.map(str::to_owned)).collect();
    names.drain(..names.len().saturating_sub(MAX_RESOURCE_NAMES));
    names
}
