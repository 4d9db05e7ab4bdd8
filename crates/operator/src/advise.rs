//! Runs the diagnosis of pods next to the reconcile loop and publishes the findings as Events. Writes nothing else, and never
//! wakes the reconcile loop.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use gpu_operator_diagnose::{Journal, PendingPod, PodEvent, Symptoms, diagnose};
use gpu_operator_plan::world::World;
use k8s_openapi::api::core::v1::Event;
use kube::{Api, Client, api::ListParams};

use crate::{
    election::Leadership,
    error::{Error, request},
    events::Publisher,
    extract::{Extract, Extracted},
    metrics::Metrics,
    watch::{MAX_ELEMENTS, Mirrors},
};

/// The minimum delay between a change and the next diagnosis: while a fleet is installed there are many changes, and one
/// diagnosis covers them all.
const GATHER: Duration = Duration::from_secs(2);
/// The minimum pause between diagnoses, as a multiple of the duration of a diagnosis, to leave CPU time for planning.
const SPARING: u32 = 20;
/// The pause if there is nothing to wait for.
const IDLE: Duration = Duration::from_hours(1);
const MAX_EVENTS: u32 = 50;

/// What diagnosis reads of an Event about a pod.
#[derive(Clone, Debug)]
struct Reported(Option<PodEvent>);

impl Extract for Reported {
    type Object = Event;
    const MAX_ELEMENTS: usize = MAX_ELEMENTS;

    fn extract(event: Event, _: bool) -> Self {
        Self(PodEvent::of(event))
    }
}

pub struct Adviser {
    /// Whether this replica may write.
    pub leadership: Leadership,
    pub client: Client,
    pub mirrors: Arc<Mirrors>,
    pub metrics: Arc<Metrics>,
    pub publisher: Publisher,
}

impl Adviser {
    /// Runs until dropped. A replica that does not lead diagnoses nothing.
    pub async fn run(self) {
        loop {
            self.leadership.gained().await;
            self.leadership.while_held(self.passes()).await;
            self.metrics.show_findings(&[]);
        }
    }

    async fn passes(&self) {
        let mut journal = Journal::default();
        let (mut pause, mut gather) = (IDLE, GATHER);
        loop {
            tokio::select! {
                () = self.mirrors.changed() => tokio::time::sleep(gather).await,
                () = tokio::time::sleep(pause) => {}
            }
            let Some(symptoms) = self.mirrors.symptoms() else { continue };
            pause = if symptoms.pods.is_empty() && symptoms.refused.is_empty() && journal.is_empty() {
                self.metrics.show_findings(&[]);
                IDLE
            } else if let Some(world) = self.mirrors.world() {
                let again;
                (again, gather) = self.pass(&mut journal, symptoms, &world).await;
                again
            } else {
                IDLE
            };
        }
    }

    /// Diagnoses all pods once. Returns how long to wait for the next diagnosis if nothing changes, and how long at least.
    async fn pass(&self, journal: &mut Journal, mut symptoms: Symptoms, world: &World) -> (Duration, Duration) {
        let now = self.mirrors.now();
        journal.keep(&symptoms);
        symptoms.pod_events = journal.pod_events();
        let started = Instant::now();
        let mut diagnosis = diagnose(&symptoms, world, now);
        let gather = GATHER.max(started.elapsed() * SPARING);
        let pods = diagnosis.questions.iter().filter_map(|key| Some(&**symptoms.pods.get(key)?));
        let (pods, read_again) = journal.to_read(pods, now);
        if !pods.is_empty() {
            // Sequentially, here and below: there is no hurry, and the requests of the reconcile loop take precedence.
            for pod in pods {
                let answer = pod_events(&self.client, pod).await.inspect_err(|error| {
                    tracing::warn!(%error, "failed to read the Events of a pod");
                });
                journal.record(&pod.uid, answer.ok(), now);
            }
            symptoms.pod_events = journal.pod_events();
            diagnosis = diagnose(&symptoms, world, now);
        }
        self.metrics.show_findings(&diagnosis.findings);
        let (unpublished, publish_again) = journal.to_publish(&diagnosis.findings, now);
        for finding in &unpublished {
            self.publisher.publish_finding(finding);
        }
        let again = [diagnosis.check_again, read_again, publish_again].into_iter().flatten().min();
        let pause = again.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
        (pause.map_or(IDLE, |pause| pause.max(gather)), gather)
    }
}

/// Reads the Events of a pod. Events are not cached.
async fn pod_events(client: &Client, pod: &PendingPod) -> Result<Vec<PodEvent>, Error> {
    let events = Api::<Extracted<Reported>>::namespaced(client.clone(), &pod.namespace);
    let params = ListParams::default().fields(&format!("involvedObject.uid={}", pod.uid)).limit(MAX_EVENTS);
    let what = format!("list the events of pod {}/{}", pod.namespace, pod.name);
    let found = request(what, events.list(&params)).await?;
    Ok(found.items.into_iter().filter_map(|event| event.part.0).collect())
}
