//! The watches of diagnosis: pods of all namespaces that are Pending, and refusals of pods and of their containers. They wake diagnosis and
//! never the plan, and the operator is ready without them.

use std::{collections::BTreeMap, sync::Arc};

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::{Api, Client, runtime::watcher};
use tokio::sync::Notify;

use super::{Mirrors, any, follow, follow_said};
use crate::diagnose::{PendingPod, RefusedPods, Symptoms};

/// Pods and refusals that are looked at: where more are pending, the others are looked at once some of these are gone and
/// the watch begins anew.
pub const MOST: usize = 2000;
/// What belongs to the cluster's own equipment takes from nodes what it needs.
const EQUIPMENT: &str = "kube-system";

impl Mirrors {
    /// Pods and refusals as the mirrors show them, once all kinds have been listed.
    #[must_use]
    pub fn symptoms(&self) -> Option<Symptoms> {
        let mut refused = self.refused.facts()?;
        refused.extend(self.not_started.facts()?);
        Some(Symptoms { pods: self.pending.facts()?, refused, voices: BTreeMap::new() })
    }
}

/// Follows what diagnosis reads of pods, but for those in the operator's own namespace, until dropped.
#[must_use]
pub fn follow_pods(client: &Client, namespace: &str, mirrors: &Arc<Mirrors>) -> Vec<BoxFuture<'static, ()>> {
    let fields = format!("status.phase=Pending,metadata.namespace!={namespace},metadata.namespace!={EQUIPMENT}");
    let nobody = Arc::<Notify>::default;
    let said = |fields: &str| {
        let fields = format!("{fields},metadata.namespace!={namespace}");
        follow_said(Api::<Event>::all(client.clone()), &fields)
    };
    vec![
        follow(
            watcher(Api::<Pod>::all(client.clone()), any().fields(&fields)),
            Arc::clone(mirrors),
            |mirrors| &mirrors.pending,
            |_, pod| PendingPod::of(&pod),
            nobody(),
        ),
        follow(
            said("reason=FailedCreate"),
            Arc::clone(mirrors),
            |mirrors| &mirrors.refused,
            |_, event| RefusedPods::of(&event),
            nobody(),
        ),
        // A pod whose container is not started is not Pending for long: kubelet says that it runs, or has failed.
        follow(
            said("reason=Failed,involvedObject.kind=Pod"),
            Arc::clone(mirrors),
            |mirrors| &mirrors.not_started,
            |_, event| RefusedPods::of(&event),
            nobody(),
        ),
    ]
}
