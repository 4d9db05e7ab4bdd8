//! The watches of the installation's own objects: the chart's ValidatingAdmissionPolicies and their bindings, and the metadata of
//! the CRDs. Each is watched by name, because the operator may read no others.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture};
use gpu_operator_crd::schema_revision::crd_names;
use k8s_openapi::api::admissionregistration::v1::{ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding};
use kube::Client;
use tokio::sync::Notify;

use crate::{
    installation::{Crd, CrdMetadata, Enforces, is_enforced},
    metrics::Metrics,
    watch::{Known, Mirrors, watch_named},
};

/// Watches these policies and their bindings, until the returned futures are dropped, and shows in a metric whether they are enforced.
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
    let mut policies = watch_named::<ValidatingAdmissionPolicy, Enforces>(&client, &name, consequence);
    let mut bindings = watch_named::<ValidatingAdmissionPolicyBinding, Enforces>(&client, &name, consequence);
    let (mut policy, mut binding) = (Known::Unknown, Known::Unknown);
    loop {
        metrics.show_admission_policy(&name, is_enforced(policy, binding));
        tokio::select! {
            Some(known) = policies.next() => policy = known,
            Some(known) = bindings.next() => binding = known,
        }
    }
}

/// Watches the CRDs, until the returned futures are dropped, and reports to the mirrors, and by metrics and log, which are older than the
/// operator.
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
    let mut answers = watch_named::<CrdMetadata, Crd>(&client, name, "it is not known whether it is outdated");
    let mut was_outdated = false;
    while let Some(known) = answers.next().await {
        // What may not be read, and what does not exist, prevents nothing.
        let outdated = match known {
            Known::Present(crd) => crd.outdated,
            Known::Unknown | Known::Absent => None,
        };
        metrics.show_crd(name, outdated.is_some());
        if let Some(mismatch) = outdated.as_ref().filter(|_| !was_outdated) {
            tracing::warn!("{mismatch}; this replica does not lead meanwhile: {}", mismatch.remedy());
        } else if outdated.is_none() && was_outdated {
            tracing::info!("CRD {name} is outdated no longer");
        }
        was_outdated = outdated.is_some();
        if mirrors.learn_crd(name, outdated) {
            wake.notify_one();
        }
    }
}
