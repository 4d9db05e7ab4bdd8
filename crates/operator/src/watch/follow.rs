//! Following one kind of objects into its mirror, or a single object by name for kinds of which the operator may read no others.
//! A watch of a single object makes no requests while nothing changes.

use std::{fmt::Debug, sync::Arc, time::Duration};

use futures::{
    Stream, StreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use gpu_operator_common::mirror::Mirror;
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        utils::Backoff,
        watcher::{self, DefaultBackoff, watch_object},
    },
};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use super::{
    fact::{Fact, Read},
    mirrors::{Mirrors, Shared, version},
};
use crate::extract::Extracted;

/// The number of objects in a page of a list. The text of a page is held in memory completely; see [`crate::client`].
const PAGE: u32 = 100;

/// Returns a watch configuration for all objects, listed page by page.
pub fn any() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// The pauses after errors of a watch. They become shorter only after some time without an error, not with each list
/// that succeeds: if the watch after it always fails, all objects would be listed every second.
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

/// Ends a watch of a kind that the API server does not serve, as if there were no objects. Whether it serves the kind changes only with its
/// version, and is read again when the operator starts.
pub fn if_served<E: Send + 'static>(
    events: impl Stream<Item = watcher::Result<watcher::Event<E>>>,
) -> impl Stream<Item = watcher::Result<watcher::Event<E>>> {
    use watcher::Event::{Init, InitDone};
    // The answer on a version that is not served is plain text, so it has the code and no reason.
    let unserved = |event: &watcher::Result<_>| match event {
        Err(watcher::Error::InitialListFailed(kube::Error::Api(status))) => status.code == 404,
        _ => false,
    };
    let events = events.scan(false, move |has_ended, event| {
        let next = if *has_ended {
            None
        } else if unserved(&event) {
            *has_ended = true;
            Some(vec![Ok(Init), Ok(InitDone)])
        } else {
            Some(vec![event])
        };
        ready(next)
    });
    events.flat_map(stream::iter)
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
            }
        }
    })
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known<T> {
    /// It has not been read, or may not be read.
    #[default]
    Unknown,
    Absent,
    Present(T),
}

/// Watches one object, and returns its state whenever that may have changed. If the API server rejects the requests, a
/// warning ends with `consequence`.
pub fn watch_named<K, T>(client: &Client, name: &str, consequence: &'static str) -> BoxStream<'static, Known<T>>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: for<'k> From<&'k K> + Send + 'static,
{
    let watched = name.to_owned();
    let mut rejected = false;
    let known = move |item: watcher::Result<Option<K>>| match item {
        Ok(object) => {
            rejected = false;
            Some(object.as_ref().map_or(Known::Absent, |object| Known::Present(T::from(object))))
        }
        Err(error) if is_rejection(&error) => {
            if !std::mem::replace(&mut rejected, true) {
                let kind = K::kind(&());
                tracing::warn!(%error, "cannot watch {kind} {watched}: {consequence}");
            }
            Some(Known::Unknown)
        }
        // The API server cannot be reached, which the other watches log. What was known remains known.
        Err(_) => None,
    };
    let objects = watch_object(Api::<K>::all(client.clone()), name).backoff(Pauses::default());
    objects.map(known).filter_map(ready).boxed()
}

/// Returns whether the API server does not serve the kind, or denies the request.
fn is_rejection(error: &watcher::Error) -> bool {
    use watcher::Error::{InitialListFailed, WatchStartFailed};
    match error {
        InitialListFailed(kube::Error::Api(status)) | WatchStartFailed(kube::Error::Api(status)) => {
            status.is_forbidden() || status.is_not_found()
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use gpu_operator_crd::keys;
    use gpu_operator_plan::world::PodFacts;
    use serde_json::json;
    use watcher::Event::{Apply, Delete, Init, InitDone};

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
            follow(stream::iter(events), &mirrors, |mirrors| &mirrors.pods, &wake).await;
            assert_eq!(mirrors.pods.read().get("p").is_some(), known);
        }
    }
}
