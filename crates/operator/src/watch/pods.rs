//! The watches of diagnosis: pods of all namespaces that are Pending, and refusals of pods. They wake diagnosis and
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
    /// Pods and refusals as the mirrors show them, once both kinds have been listed.
    #[must_use]
    pub fn symptoms(&self) -> Option<Symptoms> {
        Some(Symptoms { pods: self.pending.facts()?, refused: self.refused.facts()?, voices: BTreeMap::new() })
    }
}

/// Follows what diagnosis reads of pods, but for those in the operator's own namespace, until dropped.
#[must_use]
pub fn follow_pods(client: &Client, namespace: &str, mirrors: &Arc<Mirrors>) -> Vec<BoxFuture<'static, ()>> {
    let fields = format!("status.phase=Pending,metadata.namespace!={namespace},metadata.namespace!={EQUIPMENT}");
    let nobody = Arc::<Notify>::default;
    vec![
        follow(
            watcher(Api::<Pod>::all(client.clone()), any().fields(&fields)),
            Arc::clone(mirrors),
            |mirrors| &mirrors.pending,
            |_, pod| PendingPod::of(&pod),
            nobody(),
        ),
        follow(
            follow_said(
                Api::<Event>::all(client.clone()),
                &format!("reason=FailedCreate,metadata.namespace!={namespace}"),
            ),
            Arc::clone(mirrors),
            |mirrors| &mirrors.refused,
            |_, event| RefusedPods::of(&event),
            nobody(),
        ),
    ]
}
