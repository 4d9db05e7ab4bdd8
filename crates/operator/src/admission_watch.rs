//! The watches of the chart's ValidatingAdmissionPolicies and their bindings, each by name: the operator may read no others. They
//! make no requests while nothing changes, and wake nothing.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture};
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::Client;
use tokio::time::{Instant, sleep_until};

use crate::{
    admission::{Binding, Journal, Policy, State},
    metrics::Metrics,
    watch::{Known, watch_named},
};

/// Watches these policies and their bindings, until the returned futures are dropped, and reports by metrics and log whether they
/// are enforced.
pub fn follow_all(client: &Client, names: Vec<String>, metrics: &Arc<Metrics>) -> Vec<BoxFuture<'static, ()>> {
    let watch_one = |name| -> BoxFuture<'static, ()> { Box::pin(follow(client.clone(), name, Arc::clone(metrics))) };
    names.into_iter().map(watch_one).collect()
}

async fn follow(client: Client, name: String, metrics: Arc<Metrics>) {
    let consequence = "it is not known whether the policy is enforced";
    let mut policies = watch_named::<ValidatingAdmissionPolicy, Policy>(&client, &name, consequence);
    let mut bindings = watch_named::<ValidatingAdmissionPolicyBinding, Binding>(&client, &name, consequence);
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
