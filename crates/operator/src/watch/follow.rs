//! Following one kind of objects into its mirror.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt, future::BoxFuture};
use gpu_operator_plan::world::mirror::{Fact, observed};
use kube::{
    Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, DefaultBackoff},
    },
};
use tokio::sync::Notify;

use super::mirrors::{Mirrors, Readable, Shared, trimmed, version};

/// The number of objects in a page of a list. A page is held in memory completely.
const PAGE: u32 = 100;

/// Returns a watch configuration for all objects, listed page by page.
pub fn any() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Reads a custom resource: the object, if it can be parsed, and its name. An object that cannot be parsed must not stall the watch.
pub fn valid<K, N>(guard: DeserializeGuard<K>, typed: impl FnOnce(String) -> N) -> (N, Option<Readable<K>>)
where
    K: Resource<DynamicType = ()>,
{
    let name = guard.name_any();
    let object = guard.0.map(|object| Arc::new(trimmed(object))).inspect_err(|error| {
        tracing::warn!(kind = %K::kind(&()), name, %error, "cannot parse object; leaving what it governs unchanged");
    });
    (typed(name), Some(object.ok()))
}

/// What an object says about the entry of this name: its facts, or that there are none. `None` if it concerns no entry.
pub type Reading<N, F> = Option<(N, Option<F>)>;

/// The pauses after errors of a watch. They become shorter again only after some time without an error, and not with each list that
/// succeeds: if the watch after it always fails, all objects would be listed every second.
#[derive(Default)]
struct Pauses(DefaultBackoff);

impl Iterator for Pauses {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.0.next()
    }
}

impl Backoff for Pauses {
    fn reset(&mut self) {}
}

/// Keeps one mirror up to date and wakes the loop when a fact in it changes.
pub fn follow<K, F, N>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    mirrors: Arc<Mirrors>,
    mirror: fn(&Mirrors) -> &Shared<F, N>,
    read: fn(K) -> Reading<N, F>,
    wake: Arc<Notify>,
) -> BoxFuture<'static, ()>
where
    K: Resource<DynamicType = ()> + Send + 'static,
    F: Fact + Send + Sync + 'static,
    N: Ord + Clone + Send + Sync + 'static,
{
    Box::pin(async move {
        let changed_here = &mirrors.changed;
        let mirror = mirror(&mirrors);
        let read = |object| {
            let (name, fact) = read(object)?;
            Some((name, fact.map(|fact| observed(fact, mirrors.now()))))
        };
        let mut events = events.backoff(Pauses::default()).boxed();
        while let Some(event) = events.next().await {
            let changed = match event {
                Ok(watcher::Event::Init) => {
                    mirror.write().begin_list();
                    false
                }
                Ok(watcher::Event::InitApply(object)) => {
                    let version = version(&object);
                    let listed = read(object).and_then(|(name, fact)| Some((name, fact?)));
                    listed.is_some_and(|(name, fact)| mirror.write().list(name, version, fact))
                }
                Ok(watcher::Event::InitDone) => mirror.write().end_list(),
                Ok(watcher::Event::Apply(object)) => {
                    let version = version(&object);
                    match read(object) {
                        Some((name, Some(fact))) => mirror.write().set(name, version, fact),
                        // An object may have had facts before, such as a pod that has lost its label.
                        Some((name, None)) => {
                            let mut mirror = mirror.write();
                            mirror.get(&name).is_some() && mirror.remove(name, version)
                        }
                        None => false,
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    let version = version(&object);
                    read(object).is_some_and(|(name, _)| mirror.write().remove(name, version))
                }
                Err(error) => {
                    tracing::warn!(kind = %K::kind(&()), %error, "watch failed; retrying");
                    false
                }
            };
            if changed {
                wake.notify_one();
                changed_here.notify_one();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::{GpuNode, keys};
    use gpu_operator_plan::{inventory::report, world::PodFacts};
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(version: &str, labels: &serde_json::Value) -> Pod {
        let meta = json!({"name": "p", "namespace": "n", "resourceVersion": version, "labels": labels});
        serde_json::from_value(json!({"metadata": meta, "spec": {"nodeName": "a", "containers": []}})).unwrap()
    }

    #[test]
    fn only_the_reports_time_is_kept_of_the_managed_fields() {
        let entry = |manager: &str, second: u8| json!({"manager": manager, "subresource": "status", "time": format!("2026-01-01T00:00:0{second}Z"), "fieldsV1": {"f:status": {}}});
        let managed = [entry(keys::MANAGER, 1), entry(keys::PROBE_MANAGER, 2), entry("kubectl", 3)];
        let gpu_node = json!({"metadata": {"name": "a", "resourceVersion": "7", "managedFields": managed}, "spec": {}});
        let kept = trimmed(serde_json::from_value::<GpuNode>(gpu_node).unwrap());
        assert_eq!((kept.managed_fields().len(), kept.resource_version()), (1, None));
        assert_eq!(kept.managed_fields()[0].fields_v1, None);
        assert_eq!(report::written(Some(&kept)), Some("2026-01-01T00:00:02Z".parse().unwrap()));
    }

    #[tokio::test]
    async fn an_object_that_is_no_fact_any_more_is_removed() {
        use watcher::Event::{Apply, Delete, Init, InitDone};
        let own = json!({keys::STAGE: "driver"});
        let (labelled, bare) = (|version| pod(version, &own), |version| pod(version, &json!({})));
        for (events, known) in [
            (vec![Apply(labelled("1"))], true),
            (vec![Apply(labelled("1")), Apply(bare("2"))], false),
            (vec![Apply(labelled("1")), Apply(bare("2")), Delete(bare("3"))], false),
            (vec![Apply(labelled("1")), Delete(bare("3"))], false),
            (vec![Apply(bare("1")), Apply(labelled("2"))], true),
        ] {
            let (mirrors, wake) = (Arc::<Mirrors>::default(), Arc::<Notify>::default());
            let events = [Init, InitDone].into_iter().chain(events).map(Ok);
            let read = |pod: Pod| Some((pod.name_any(), PodFacts::of(&pod)));
            follow(futures::stream::iter(events), Arc::clone(&mirrors), |mirrors| &mirrors.pods, read, wake).await;
            assert_eq!(mirrors.pods.read().get("p").is_some(), known);
        }
    }
}
