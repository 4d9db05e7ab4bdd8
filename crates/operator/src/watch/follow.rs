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

use super::{
    fact::Fact,
    mirrors::{Mirrors, Shared, version},
};

/// The number of objects in a page of a list. A page is held in memory completely.
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
    events: impl Stream<Item = watcher::Result<watcher::Event<F::Object>>> + Send + 'static,
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
                    let listed = F::read(object).and_then(|(name, fact)| Some((name, fact?)));
                    listed.is_some_and(|(name, fact)| mirror.put(Mirror::list, name, version, fact, mirrors.now()))
                }
                Ok(watcher::Event::InitDone) => mirror.write().end_list(),
                Ok(watcher::Event::Apply(object)) => {
                    let version = version(&object);
                    match F::read(object) {
                        Some((name, Some(fact))) => mirror.put(Mirror::set, name, version, fact, mirrors.now()),
                        // An object may have had facts before, such as a pod that has lost its label.
                        Some((name, None)) => mirror.write().remove(&name, version),
                        None => false,
                    }
                }
                Ok(watcher::Event::Delete(object)) => {
                    let version = version(&object);
                    F::read(object).is_some_and(|(name, _)| mirror.write().remove(&name, version))
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
    use gpu_operator_crd::keys;
    use k8s_openapi::api::core::v1::Pod;
    use serde_json::json;

    use super::*;

    fn pod(version: &str, labels: &serde_json::Value) -> Pod {
        let meta = json!({"name": "p", "namespace": "n", "resourceVersion": version, "labels": labels});
        serde_json::from_value(json!({"metadata": meta, "spec": {"nodeName": "a", "containers": []}})).unwrap()
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
