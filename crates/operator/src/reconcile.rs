//! The reconcile loop: observe → plan → apply → status, for the whole fleet at once. Events only wake it, and one pass handles
//! many of them. Between passes it keeps only what the API server does not store: [`gpu_operator_plan::carry`].

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpu_operator_plan::{Plan, carry::Carry, catalogue::Catalogue, settings::Settings, time::Uptime, world::World};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use tokio::sync::Notify;

use crate::{apply::Writer, events::Publisher, metrics::Metrics, observe, progress::Progress, watch::Mirrors};

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
    /// Returns the current time.
    pub clock: fn() -> Timestamp,
}

impl Loop {
    /// Runs until dropped.
    pub async fn run(self) {
        let writer = Writer::new(self.client.clone(), self.settings.namespace.clone(), Arc::clone(&self.mirrors));
        let mut carry = Carry::default();
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
            carry.enrich(&mut world, writer.uptime());
            self.progress.began(tokio::time::Instant::now());
            pause = self.pass(&writer, world, &mut carry).await;
            self.progress.ended();
        }
    }

    /// Runs one pass. Returns how long to wait for the next if nothing wakes the loop.
    async fn pass(&self, writer: &Writer, mut world: World, carry: &mut Carry) -> Duration {
        // In whole seconds, the precision that Kubernetes stores.
        let now = Timestamp::from_second((self.clock)().as_second()).unwrap_or_default();
        let started = Instant::now();
        let uptime = writer.uptime();
        let mut plan = gpu_operator_plan::plan(&self.settings, &self.catalogue, &world, now);
        let planning = started.elapsed();
        self.read_log_tails(&mut plan, &mut world, carry, now, uptime).await;
        let asks = world.gpu_asks();
        // Each round queries the next few nodes of every pool, and no node twice.
        while !plan.questions.gpu_pods.is_empty() {
            let namespace = &self.settings.namespace;
            match observe::gpu_pods(&self.client, namespace, &plan.questions.gpu_pods, &asks).await {
                Ok(found) => world.gpu_pods.extend(found),
                Err(error) => {
                    tracing::warn!(%error, "failed to list the pods that use GPUs; the rollout is paused");
                    break;
                }
            }
            plan = gpu_operator_plan::plan(&self.settings, &self.catalogue, &world, now);
        }
        self.metrics.show(&plan);
        carry.begin(&mut plan, &world, uptime);
        // The mirrors are updated while the plan is written, and only the world keeps their old facts in memory.
        drop(world);
        let written = writer.apply(&plan, carry).await;
        carry.ended(&plan);
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
        tracing::debug!(?planning, writes = written.len(), "pass finished");
        next_pass(&plan, now, carry.next(writer.uptime()))
    }

    /// Reads the logs that a plan requests, and plans again with them. If there are many, each pass reads different ones.
    async fn read_log_tails(
        &self,
        plan: &mut Plan,
        world: &mut World,
        carry: &mut Carry,
        now: Timestamp,
        uptime: Uptime,
    ) {
        let mut asked = std::mem::take(&mut plan.questions.log_tails);
        if asked.is_empty() {
            return;
        }
        let known = carry.unreadable(&asked, uptime);
        asked.retain(|pod| !known.contains_key(pod));
        world.log_tails = observe::log_tails(&self.client, &self.settings.namespace, &asked, now).await;
        carry.read(&world.log_tails, uptime);
        world.log_tails.extend(known);
        *plan = gpu_operator_plan::plan(&self.settings, &self.catalogue, world, now);
    }
}

fn next_pass(plan: &Plan, now: Timestamp, held: Option<Duration>) -> Duration {
    let check = plan.check_again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    // At least a second: a time that has already passed is handled by the plan of the next second.
    let check = check.map(|check| check.max(Duration::from_secs(1)));
    [check, held].into_iter().flatten().min().unwrap_or(IDLE)
}
