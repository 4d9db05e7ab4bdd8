//! Watches of single objects by name, for kinds of which the operator may read no others. They make no requests while nothing changes.

use std::fmt::Debug;

use futures::{StreamExt, stream::BoxStream};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use serde::de::DeserializeOwned;

use super::follow::Pauses;

/// What is known of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known<T> {
    /// It has not been read, or may not be read.
    #[default]
    Unknown,
    /// It does not exist.
    Absent,
    /// It exists.
    Present(T),
}

/// Watches one object. Returns what is known of it whenever that may have changed. If the API server rejects the requests, a warning
/// ends with `consequence`.
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
    objects.map(known).filter_map(std::future::ready).boxed()
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
