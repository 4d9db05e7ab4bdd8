//! The reconcile loop: observe → plan → apply → status, for the whole fleet at once. Events only wake it, and one pass handles
//! many of them. Between passes it keeps only what the API server does not store: [`gpu_operator_plan::loop_memory`].

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use gpu_operator_plan::{
    Plan, catalogue::Catalogue, loop_memory::LoopState, pass::Pass, settings::Settings, world::World,
};
use kube::Client;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until},
};

use crate::{
    admin::Progress,
    drive::Driver,
    election::Leadership,
    events::Publisher,
    installation_watch,
    metrics::Metrics,
    watch::{self, Mirrors},
};

/// Events within this time are handled by one pass.
const GATHER: Duration = Duration::from_millis(200);
/// The shortest time between the starts of two passes, for each node that the first of them had to plan: the events of a fleet never end
/// while it is installed. A settled fleet has no such node.
const SPACING: Duration = Duration::from_millis(1);
/// The limit of [`SPACING`] for all nodes together.
const MAX_SPACING: Duration = Duration::from_secs(1);
const IDLE: Duration = Duration::from_hours(1);

fn spacing(nodes: usize) -> Duration {
    SPACING.saturating_mul(u32::try_from(nodes).unwrap_or(u32::MAX)).min(MAX_SPACING)
}

pub struct Loop {
    /// Whether this replica may write.
    pub leadership: Leadership,
    pub driver: Driver,
    pub mirrors: Arc<Mirrors>,
    pub wake: Arc<Notify>,
    pub metrics: Arc<Metrics>,
    pub publisher: Publisher,
    pub progress: Arc<Progress>,
}

impl Loop {
    /// Creates the loop, and its tasks: the watches that fill `mirrors`, and the publisher of Events. They run until
    /// they are dropped.
    pub fn new(
        client: &Client,
        settings: Settings,
        catalogue: Catalogue,
        leadership: Leadership,
        mirrors: Arc<Mirrors>,
    ) -> (Self, Vec<BoxFuture<'static, ()>>) {
        let (metrics, wake, progress) = <(Arc<Metrics>, Arc<Notify>, Arc<Progress>)>::default();
        let (publisher, publishing) = Publisher::new(client.clone(), Arc::clone(&metrics));
        let mut tasks = watch::follow_all(client, &settings.namespace, &mirrors, &wake);
        tasks.extend(installation_watch::watch_crds(client, &mirrors, &metrics, &wake));
        tasks.push(Box::pin(publishing));
        let driver = Driver::new(settings, catalogue, client.clone(), Arc::clone(&mirrors));
        (Self { leadership, driver, mirrors, wake, metrics, publisher, progress }, tasks)
    }

    /// Runs until dropped. A replica that does not lead keeps nothing but its mirrors: it begins with a new state when it leads.
    pub async fn run(self) {
        loop {
            self.metrics.show_leader(false);
            self.leadership.gained().await;
            tracing::info!("this replica leads");
            self.metrics.show_leader(true);
            self.leadership.while_held(self.passes(false)).await;
            tracing::warn!("this replica leads no longer, and writes nothing");
            // Only the leader knows, and reports, the state of the fleet.
            self.metrics.show(&Plan::default());
            self.progress.ended();
        }
    }

    /// Runs passes while this replica leads, until one of them finds nothing to write.
    pub async fn settle(self) {
        let mut is_settled = false;
        while !is_settled {
            self.leadership.gained().await;
            let passes = async {
                self.passes(true).await;
                is_settled = true;
            };
            self.leadership.while_held(passes).await;
        }
    }

    async fn passes(&self, settle: bool) {
        let mut carry = LoopState::default();
        let (mut pause, mut next) = (IDLE, Instant::now());
        self.wake.notify_one();
        loop {
            tokio::select! {
                () = self.wake.notified() => sleep_until(next.max(Instant::now() + GATHER)).await,
                () = sleep(pause) => {}
            }
            // Changes from here on wake the loop again.
            let Some(world) = self.mirrors.world() else {
                continue;
            };
            let began = Instant::now();
            self.progress.began(began);
            let again = self.pass(world, &mut carry).await;
            next = began + spacing(carry.memo.0.planned());
            self.progress.ended();
            if settle && again.is_none() {
                return;
            }
            pause = again.unwrap_or(IDLE);
        }
    }

    /// Runs one pass. Returns how long to wait for the next if nothing wakes the loop; `None` if nothing was written, and there is nothing to
    /// wait for.
    async fn pass(&self, world: World, carry: &mut LoopState) -> Option<Duration> {
        let now = self.mirrors.now();
        let started = Instant::now();
        let (mut pass, requests) = Pass::begin(world, now, &mut self.driver.around(carry));
        let planning = started.elapsed();
        let written = self.driver.drive(&mut pass, requests, carry, &self.leadership).await;
        if let Some(plan) = pass.plan() {
            self.metrics.show(plan);
        }
        let made = written.iter().filter(|written| written.result.is_ok());
        made.flat_map(|written| &written.write.events).for_each(|transition| self.publisher.publish(transition));
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
        pass.next(carry, self.driver.uptime()).or((!written.is_empty()).then_some(IDLE))
    }
}
