//! Following one kind of objects into its mirror.

use std::sync::Arc;

use futures::{Stream, StreamExt, future::BoxFuture};
use gpu_operator_common::interned::Interner;
use kube::{
    Resource, ResourceExt,
    core::DeserializeGuard,
    runtime::{WatchStreamExt, watcher},
};
use tokio::sync::Notify;

use super::{
    mirror::Mirror,
    mirrors::{Mirrors, Readable, trimmed, version},
};

/// The number of objects in a page of a list. A page is held in memory completely.
const PAGE: u32 = 100;

/// Returns a watch configuration for all objects, listed page by page.
pub fn any() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// Returns a custom resource, if it can be parsed, and its name. An object that cannot be parsed must not stall the watch.
pub fn valid<K, N>(guard: DeserializeGuard<K>, typed: impl FnOnce(String) -> N) -> (N, Readable<K>)
where
    K: Resource<DynamicType = ()>,
{
    let name = guard.name_any();
    let object = guard.0.map(|object| Arc::new(trimmed(object))).inspect_err(|error| {
        tracing::warn!(kind = %K::kind(&()), name, %error, "cannot parse object; leaving what it governs unchanged");
    });
    (typed(name), object.ok())
}

/// Keeps one mirror up to date and wakes the loop when a fact in it changes.
pub fn follow<K, F, N>(
    events: impl Stream<Item = watcher::Result<watcher::Event<K>>> + Send + 'static,
    mirrors: Arc<Mirrors>,
    mirror: fn(&Mirrors) -> &Mirror<F, N>,
    fact: fn(&Interner, K) -> Option<(N, F)>,
    wake: Arc<Notify>,
) -> BoxFuture<'static, ()>
where
    K: Resource<DynamicType = ()> + Send + 'static,
    F: PartialEq + Send + Sync + 'static,
    N: Ord + Clone + Send + Sync + 'static,
{
    Box::pin(async move {
        let changed_here = &mirrors.changed;
        let mirror = mirror(&mirrors);
        let fact = |object| fact(&mirrors.words, object);
        let mut events = events.default_backoff().boxed();
        while let Some(event) = events.next().await {
            let changed = match event {
                Ok(watcher::Event::Init) => {
                    mirror.begin_list();
                    false
                }
                Ok(watcher::Event::InitApply(object)) => {
                    let version = version(&object);
                    fact(object).is_some_and(|(name, fact)| mirror.list(name, version, fact))
                }
                Ok(watcher::Event::InitDone) => mirror.end_list(),
                Ok(watcher::Event::Apply(object)) => {
                    let version = version(&object);
                    fact(object).is_some_and(|(name, fact)| mirror.set(name, version, fact))
                }
                Ok(watcher::Event::Delete(object)) => {
                    let version = version(&object);
                    fact(object).is_some_and(|(name, _)| mirror.remove(name, version))
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
