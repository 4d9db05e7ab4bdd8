//! The watches of the chart's ValidatingAdmissionPolicies and their bindings, each by name: the operator may read no others. They
//! make no requests while nothing changes, and wake nothing.

use std::{fmt::Debug, sync::Arc};

use futures::{StreamExt, future::BoxFuture, stream::BoxStream};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::{
    Api, Client, Resource,
    runtime::{
        WatchStreamExt,
        watcher::{self, watch_object},
    },
};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until};

use crate::{
    admission::{Binding, Journal, Known, Policy, State},
    metrics::Metrics,
    watch::Pauses,
};

/// Watches these policies and their bindings, until the returned futures are dropped, and reports by metrics and log whether they
/// are enforced.
#[must_use]
pub fn follow_all(client: &Client, names: Vec<String>, metrics: &Arc<Metrics>) -> Vec<BoxFuture<'static, ()>> {
    let watch_one = |name| -> BoxFuture<'static, ()> { Box::pin(follow(client.clone(), name, Arc::clone(metrics))) };
    names.into_iter().map(watch_one).collect()
}

async fn follow(client: Client, name: String, metrics: Arc<Metrics>) {
    let mut policies = watch::<ValidatingAdmissionPolicy, Policy>(&client, &name);
    let mut bindings = watch::<ValidatingAdmissionPolicyBinding, Binding>(&client, &name);
    let (mut policy, mut binding) = (Known::Unknown, Known::Unknown);
    let mut journal = Journal::new(Instant::now());
    loop {
        let state = State::of(policy, binding);
        metrics.show_admission_policy(&name, state);
        journal.record(state, Instant::now());
        if let Some(state) = journal.take_due(Instant::now()) {
            log(&name, state);
        }
        tokio::select! {
            Some(known) = policies.next() => policy = known,
            Some(known) = bindings.next() => binding = known,
            () = until(journal.due()) => {}
        }
    }
}

/// Watches one object. Returns what is known of it whenever that may have changed.
fn watch<K, T>(client: &Client, name: &str) -> BoxStream<'static, Known<T>>
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
                tracing::warn!(%error, "cannot watch {kind} {watched}: it is not known whether the policy is enforced");
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

fn log(name: &str, state: State) {
    if let Some(fault) = state.fault(name) {
        tracing::warn!(state = state.as_str(), "{fault}");
    } else {
        tracing::info!("ValidatingAdmissionPolicy {name} is enforced again");
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
