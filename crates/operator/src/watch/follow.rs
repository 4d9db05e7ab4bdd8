//! Following one kind of objects into its mirror.

use std::{sync::Arc, time::Duration};

use futures::{Stream, StreamExt, future::BoxFuture};
use gpu_operator_common::mirror::Mirror;
use kube::{
    Resource,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, DefaultBackoff},
    },
};
use tokio::sync::Notify;

use crate::extract::Extracted;

use super::{
    fact::{Fact, Read},
    mirrors::{Mirrors, Shared, version},
};

/// The number of objects in a page of a list. The text of a page is held in memory completely; see [`crate::client`].
const PAGE: u32 = 100;

/// Returns a watch configuration for all objects, listed page by page.
pub fn any() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// The pauses after errors of a watch. They become shorter again only after some time without an error, and not with each list that
/// succeeds: if the watch after it always fails, all objects would be listed every second.
#[derive(Default)]
pub struct Pauses(DefaultBackoff);

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
pub fn follow<F: Fact>(
    events: impl Stream<Item = watcher::Result<watcher::Event<Extracted<Read<F>>>>> + Send + 'static,
    mirrors: &Arc<Mirrors>,
    mirror: fn(&Mirrors) -> &Shared<F>,
    wake: &Arc<Notify>,
) -> BoxFuture<'static, ()> {
    let (mirrors, wake) = (Arc::clone(mirrors), Arc::clone(wake));
    Box::pin(async move {
        let mirror = mirror(&mirrors);
        let mut events = events.backoff(Pauses::default()).boxed();
        while let Some(event) = events.next().await {
            let changed = match event {
                Ok(watcher::Event::Init) => {
                    mirror.write().begin_list();
                    false
                }
                Ok(watcher::Event::InitApply(object)) => {
                    let version = version(&object);
                    let listed = object.part.0.and_then(|(name, fact)| Some((name, fact?)));
                    listed.is_some_and(|(name, fact)| mirror.put(Mirror::list, name, version, fact, mirrors.now()))
                }
                Ok(watcher::Event::InitDone) => {
                    let changed = mirror.write().end_list();
                    if mirror.read().is_full() {
                        tracing::warn!(kind = %F::Object::kind(&()), most = F::MOST, "there are more objects than are observed");
                    }
                    changed
                }
                Ok(watcher::Event::Apply(object)) => {
                    let version = version(&object);
                    match object.part.0 {
                        Some((name, Some(fact))) => mirror.put(Mirror::set, name, version, fact, mirrors.now()),
                        // An object may have had facts before, such as a pod that has lost its label.
                        Some((name, None)) => mirror.write().remove(&name, version),
                        None => false,
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    let version = version(&object);
                    object.part.0.is_some_and(|(name, _)| mirror.write().remove(&name, version))
                }
                Err(error) => {
                    tracing::warn!(kind = %F::Object::kind(&()), %error, "watch failed; retrying");
                    false
                }
            };
            if changed {
                wake.notify_one();
                mirrors.changed.notify_one();
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpu_operator_crd::keys;
    use gpu_operator_plan::world::PodFacts;
    use serde_json::json;

    use super::*;

    fn pod(version: &str, labels: &serde_json::Value) -> Extracted<Read<PodFacts>> {
        let meta = json!({"name": "p", "namespace": "n", "resourceVersion": version, "labels": labels});
        serde_json::from_value(json!({"metadata": meta, "spec": {"nodeName": "a", "containers": []}})).unwrap()
    }

    #[test]
    fn an_object_with_too_many_elements_is_no_fact() {
        for (labels, is_fact) in [(100, true), (20_000, false)] {
            let mut labels: BTreeMap<_, _> = (0..labels).map(|label| (format!("l{label}"), "")).collect();
            labels.insert("gpu.nodestack.dev/stage".into(), "driver");
            let meta = json!({"name": "p", "labels": labels});
            let pod = json!({"metadata": meta, "spec": {"nodeName": "a", "containers": []}}).to_string();
            let pod: Extracted<Read<PodFacts>> = serde_json::from_str(&pod).unwrap();
            assert_eq!(pod.part.0.map(|(name, fact)| (name, fact.is_some())), Some(("p".into(), is_fact)));
        }
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
            follow(futures::stream::iter(events), &mirrors, |mirrors| &mirrors.pods, &wake).await;
            assert_eq!(mirrors.pods.read().get("p").is_some(), known);
        }
    }
}
