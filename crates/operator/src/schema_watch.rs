//! The watches of the metadata of the CRDs, by which the plan learns that they are of another version than this operator.

use std::sync::Arc;

use futures::{StreamExt, future::BoxFuture};
use gpu_operator_crd::schema_revision::crd_names;
use kube::Client;
use tokio::sync::Notify;

use crate::{
    metrics::Metrics,
    schema::{Crd, CrdMetadata, SchemaState},
    watch::{Known, Mirrors, watch_named},
};

/// Watches the CRDs, until the returned futures are dropped, and reports their versions to the plan, and by metrics and log.
pub fn follow_all(
    client: &Client,
    mirrors: &Arc<Mirrors>,
    metrics: &Arc<Metrics>,
    wake: &Arc<Notify>,
) -> Vec<BoxFuture<'static, ()>> {
    let watch_one = |name| -> BoxFuture<'static, ()> {
        let (mirrors, metrics, wake) = (Arc::clone(mirrors), Arc::clone(metrics), Arc::clone(wake));
        Box::pin(follow(client.clone(), name, mirrors, metrics, wake))
    };
    crd_names().into_iter().map(watch_one).collect()
}

async fn follow(client: Client, name: &'static str, mirrors: Arc<Mirrors>, metrics: Arc<Metrics>, wake: Arc<Notify>) {
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
