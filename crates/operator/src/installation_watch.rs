//! The watches of the installation's own objects: the chart's ValidatingAdmissionPolicies and their bindings, and the metadata of
//! the CRDs. Each is watched by name, because the operator may read no others.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture};
use gpu_operator_crd::schema_revision::crd_names;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::Client;
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use crate::{
    installation::{AdmissionState, Binding, Crd, CrdMetadata, Journal, Policy, SchemaState},
    metrics::Metrics,
    watch::{Known, Mirrors, watch_named},
};

/// Watches these policies and their bindings, until the returned futures are dropped, and reports by metrics and log whether they
/// are enforced.
pub fn watch_admission_policies(
    client: &Client,
    names: Vec<String>,
    metrics: &Arc<Metrics>,
) -> Vec<BoxFuture<'static, ()>> {
    let watch_one = |name| -> BoxFuture<'static, ()> {
        Box::pin(follow_admission_policy(client.clone(), name, Arc::clone(metrics)))
    };
    names.into_iter().map(watch_one).collect()
}

async fn follow_admission_policy(client: Client, name: String, metrics: Arc<Metrics>) {
    let consequence = "it is not known whether the policy is enforced";
    let mut policies = watch_named::<ValidatingAdmissionPolicy, Policy>(&client, &name, consequence);
    let mut bindings = watch_named::<ValidatingAdmissionPolicyBinding, Binding>(&client, &name, consequence);
    let (mut policy, mut binding) = (Known::Unknown, Known::Unknown);
    let mut journal = Journal::new(Instant::now());
    loop {
        let state = AdmissionState::of(policy, binding);
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

fn log(name: &str, state: AdmissionState) {
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

/// Watches the CRDs, until the returned futures are dropped, and reports their versions to the plan, and by metrics and log.
pub fn watch_crds(
    client: &Client,
    mirrors: &Arc<Mirrors>,
    metrics: &Arc<Metrics>,
    wake: &Arc<Notify>,
) -> Vec<BoxFuture<'static, ()>> {
    let watch_one = |name| -> BoxFuture<'static, ()> {
        let (mirrors, metrics, wake) = (Arc::clone(mirrors), Arc::clone(metrics), Arc::clone(wake));
        Box::pin(follow_crd(client.clone(), name, mirrors, metrics, wake))
    };
    crd_names().into_iter().map(watch_one).collect()
}

async fn follow_crd(
    client: Client,
    name: &'static str,
    mirrors: Arc<Mirrors>,
    metrics: Arc<Metrics>,
    wake: Arc<Notify>,
) {
    let consequence = "it is not known whether it is of this operator's version";
    let mut answers = watch_named::<CrdMetadata, Crd>(&client, name, consequence);
    let mut was_other = false;
    metrics.show_schema(name, SchemaState::Unknown);
    while let Some(known) = answers.next().await {
        metrics.show_schema(name, SchemaState::from(&known));
        // What may not be read, and what does not exist, prevents nothing.
        let mismatch = match known {
            Known::Present(crd) => crd.mismatch,
            Known::Unknown | Known::Absent => None,
        };
        match &mismatch {
            Some(mismatch) if !was_other => {
                tracing::warn!("{mismatch}; nothing is removed and no update begins meanwhile: {}", mismatch.remedy());
            }
            None if was_other => tracing::info!("CRD {name} is of this version again"),
            _ => {}
        }
        was_other = mismatch.is_some();
        if mirrors.learn_schema(name, mismatch) {
            wake.notify_one();
        }
    }
}
