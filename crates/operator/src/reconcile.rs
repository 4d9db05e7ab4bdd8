//! The reconcile loop: observe → plan → apply → status, for the whole fleet at once. Events only wake it, and one pass handles
//! many of them. Between passes it keeps only what the API server does not store: recent failures and the times of writes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use gpu_operator_crd::keys;
use gpu_operator_plan::{
    Plan,
    catalogue::Catalogue,
    output::events::Subject,
    settings::{ASK_AGAIN, Settings},
    time::older,
    world::{DaemonSetFacts, World},
};
use k8s_openapi::jiff::Timestamp;
use kube::{Client, ResourceExt};
use tokio::sync::Notify;

use crate::{
    apply::Writer, backoff::Backoff, events::Publisher, metrics::Metrics, observe, pace::Pace, progress::Progress,
    watch::Mirrors,
};

/// Events within this time are handled by one pass.
const GATHER: Duration = Duration::from_millis(200);
/// The pause if there is nothing to wait for.
const IDLE: Duration = Duration::from_hours(1);

/// The dependencies of the loop.
pub struct Loop {
    /// The settings.
    pub settings: Settings,
    /// The catalogue of accelerators.
    pub catalogue: Catalogue,
    /// The client of the API server.
    pub client: Client,
    /// The source of facts.
    pub mirrors: Arc<Mirrors>,
    /// What wakes the loop.
    pub wake: Arc<Notify>,
    /// The metrics to update.
    pub metrics: Arc<Metrics>,
    /// The publisher of transitions.
    pub publisher: Publisher,
    /// The progress to record.
    pub progress: Arc<Progress>,
}

/// The state that one pass leaves for the next.
#[derive(Debug, Default)]
struct LoopState {
    backoff: Backoff,
    futile: BTreeMap<String, i64>,
    /// Validation pods whose logs could not be read, with the time and the error of the last attempt.
    unread: BTreeMap<String, (Timestamp, String)>,
    pace: Pace,
}

impl Loop {
    /// Runs until dropped.
    pub async fn run(self) {
        let writer = Writer::new(self.client.clone(), self.settings.namespace.clone(), Arc::clone(&self.mirrors));
        let mut carry = LoopState::default();
        let mut pause = IDLE;
        loop {
            tokio::select! {
                () = self.wake.notified() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(pause) => {}
            }
            // Changes from here on wake the loop again.
            let Some(mut world) = self.mirrors.world() else {
                continue;
            };
            world.refused_writes = carry.backoff.refused();
            world.futile_repairs.clone_from(&carry.futile);
            self.progress.began(tokio::time::Instant::now());
            pause = self.pass(&writer, world, &mut carry).await;
            self.progress.ended();
        }
    }

    /// Runs one pass. Returns how long to wait for the next if nothing wakes the loop.
    async fn pass(&self, writer: &Writer, mut world: World, carry: &mut LoopState) -> Duration {
        let now = now();
        let started = Instant::now();
        let mut plan = gpu_operator_plan::plan(&self.settings, &self.catalogue, &world, now);
        let planning = started.elapsed();
        self.read_log_tails(&mut plan, &mut world, carry, now).await;
        let asks = world.gpu_asks();
        // Each round queries the next few nodes of every pool, and no node twice.
        while !plan.questions.gpu_pods.is_empty() {
            match observe::gpu_pods(&self.client, &plan.questions.gpu_pods, &asks).await {
                Ok((all, holders)) => {
                    world.gpu_pods.extend(all);
                    world.gpu_holders.extend(holders);
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to list the pods that use GPUs; the rollout is paused");
                    break;
                }
            }
            plan = gpu_operator_plan::plan(&self.settings, &self.catalogue, &world, now);
        }
        self.metrics.show(&plan);
        let held = hold_back(&mut plan, &world, &mut carry.pace, started);
        // The mirrors are updated while the plan is written, and only the world keeps their old facts in memory. (Destructuring the
        // world would keep the remaining fields until the end of the function.)
        let daemon_sets = std::mem::take(&mut world.daemon_sets);
        drop(world);
        let written = writer.apply(&plan, &mut carry.backoff).await;
        self.note_futile_repairs(&plan, &daemon_sets, carry);
        for transition in &plan.events {
            self.publisher.publish(transition);
        }
        self.metrics.count(&written);
        self.metrics.passed(planning, now.as_duration().as_secs_f64());
        // A mirror that was updated from the answer to a write does not wake the loop when the watch reports the same change.
        if written.iter().any(|write| write.result.is_ok()) {
            self.wake.notify_one();
        }
        for error in written.iter().filter_map(|write| write.result.as_ref().err()) {
            tracing::warn!(class = error.class().as_str(), %error, "a write failed");
        }
        let retry = carry.backoff.next().map(|at| at.saturating_duration_since(tokio::time::Instant::now()));
        tracing::debug!(?planning, writes = written.len(), "pass finished");
        next_pass(&plan, now, held, retry)
    }

    /// Reads the logs that a plan requests, and plans again with them. Logs that could not be read are retried after some time
    /// instead of in every pass. If there are many, each pass reads different ones.
    async fn read_log_tails(&self, plan: &mut Plan, world: &mut World, carry: &mut LoopState, now: Timestamp) {
        carry.unread.retain(|_, (at, _)| !older(*at, ASK_AGAIN, now));
        let asked = std::mem::take(&mut plan.questions.log_tails);
        let (known, unknown): (BTreeSet<_>, BTreeSet<_>) =
            asked.into_iter().partition(|pod| carry.unread.contains_key(pod));
        if known.is_empty() && unknown.is_empty() {
            return;
        }
        world.log_tails = observe::log_tails(&self.client, &self.settings.namespace, &unknown, now).await;
        for (pod, words) in &world.log_tails {
            if let Err(why) = words {
                carry.unread.insert(pod.clone(), (now, why.clone()));
            }
        }
        let again = known.into_iter().filter_map(|pod| Some((pod.clone(), Err(carry.unread.get(&pod)?.1.clone()))));
        world.log_tails.extend(again);
        *plan = gpu_operator_plan::plan(&self.settings, &self.catalogue, world, now);
    }

    /// Records the DaemonSets that had been applied as planned, needed a repair, and have the same generation after it: another
    /// repair would not change them either.
    fn note_futile_repairs(
        &self,
        plan: &Plan,
        daemon_sets: &BTreeMap<String, Arc<DaemonSetFacts>>,
        carry: &mut LoopState,
    ) {
        for (name, write) in &plan.daemon_sets {
            let Some(before) = daemon_sets.get(name) else { continue };
            let repaired = before.applied.as_ref() == write.set.annotations().get(keys::APPLIED);
            let generation = self.mirrors.daemon_set_generation(name).filter(|_| repaired);
            if let Some(generation) = generation.filter(|now| Some(*now) == before.generation) {
                tracing::warn!(
                    name,
                    "the DaemonSet differs from what was applied, and applying it again does not change this"
                );
                carry.futile.insert(name.clone(), generation);
            }
        }
        carry.futile.retain(|name, _| daemon_sets.contains_key(name));
    }
}

/// Removes policy statuses from a plan that come too soon after the last write. Returns how long they must wait.
fn hold_back(plan: &mut Plan, world: &World, pace: &mut Pace, now: Instant) -> Option<Duration> {
    let mut waits = BTreeMap::new();
    plan.policies.retain(|name, status| {
        let before = world.policies.get(name).and_then(|policy| policy.status.as_ref());
        let wait = pace.wait(name, before, status, now);
        match wait {
            Some(wait) => drop(waits.insert(name.clone(), wait)),
            None => pace.written(name, now),
        }
        wait.is_none()
    });
    // A transition is published together with the status that shows it, and therefore only once.
    plan.events.retain(|event| !matches!(&event.subject, Subject::Policy(name, _) if waits.contains_key(name)));
    pace.keep(|name| plan.statuses.contains_key(name));
    waits.into_values().min()
}

fn next_pass(plan: &Plan, now: Timestamp, held: Option<Duration>, retry: Option<Duration>) -> Duration {
    let check = plan.check_again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    // At least a second: a time that has already passed is handled by the plan of the next second.
    let check = check.map(|check| check.max(Duration::from_secs(1)));
    [check, held, retry].into_iter().flatten().min().unwrap_or(IDLE)
}

/// Returns the current time in whole seconds, the precision that Kubernetes stores.
fn now() -> Timestamp {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{ClusterGpuPolicyStatus, reason::Reason};

    use gpu_operator_plan::output::events::Transition;

    use super::*;

    fn plan_with_status() -> Plan {
        let status = ClusterGpuPolicyStatus::default();
        let subject = Subject::Policy("all".into(), "uid".into());
        Plan {
            policies: [("all".into(), status.clone())].into(),
            statuses: [("all".into(), status)].into(),
            events: vec![Transition { subject, reason: Reason::NodesNotReady, message: String::new() }],
            ..Plan::default()
        }
    }

    #[test]
    fn a_policys_status_that_comes_too_soon_is_delayed_together_with_its_events() {
        let (mut pace, world, now) = (Pace::default(), World::default(), Instant::now());
        let mut first = plan_with_status();
        assert_eq!(hold_back(&mut first, &world, &mut pace, now), None);
        assert_eq!((first.policies.len(), first.events.len()), (1, 1));
        let mut second = plan_with_status();
        assert_eq!(hold_back(&mut second, &world, &mut pace, now), Some(Duration::from_secs(1)));
        assert_eq!((second.policies.len(), second.events.len()), (0, 0));
    }
}
