//! What `status` reads: the policies, the operator's Deployment and, on request, the GpuNodes.

use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use k8s_openapi::{
    api::apps::v1::{Deployment, DeploymentCondition},
    jiff::Timestamp,
};
use kube::{Client, api::ListParams};
use serde::Serialize;

use crate::read::{self, ReadError};

/// The name of the operator's Deployment in the chart.
pub const DEPLOYMENT: &str = keys::OPERATOR_NAME;

/// What is known of the fleet.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    pub policies: Vec<ClusterGpuPolicy>,
    /// The names of policies that cannot be parsed.
    pub unreadable: Vec<String>,
    pub operator: Operator,
    /// The GpuNodes, if they were requested.
    pub nodes: Option<Vec<GpuNode>>,
    /// What is not known, as messages.
    pub notes: Vec<String>,
}

/// Whether the operator runs, so that the statuses are current.
#[derive(Serialize, Clone, Debug, Default, PartialEq, Eq)]
#[serde(rename_all = "camelCase", tag = "state")]
pub enum Operator {
    /// It is not known.
    #[default]
    Unknown,
    /// It runs.
    Available,
    /// It does not run.
    Unavailable {
        /// The time since which it does not run.
        since: Option<Timestamp>,
    },
    /// There is none in this namespace.
    Absent { namespace: String },
}

impl Operator {
    /// Returns the state that a Deployment in this namespace shows.
    pub fn of(deployment: Option<&Deployment>, namespace: &str) -> Self {
        let Some(deployment) = deployment else { return Self::Absent { namespace: namespace.to_owned() } };
        let conditions = deployment.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_available = |condition: &&DeploymentCondition| condition.type_ == "Available";
        match conditions.into_iter().find(is_available) {
            Some(condition) if condition.status == "True" => Self::Available,
            condition => {
                let since = condition.and_then(|condition| condition.last_transition_time.as_ref());
                Self::Unavailable { since: since.map(|time| time.0) }
            }
        }
    }
}

/// Reads the facts: two requests, however many nodes there are, unless there are more policies than fit in a page.
pub async fn read(client: &Client, namespace: &str, policy: Option<&str>) -> Result<Facts, ReadError> {
    let mut facts = Facts::default();
    if let Some(name) = policy {
        facts.policies.extend(read::get(client, None, name).await?);
    } else {
        let listed = read::list(client, None, ListParams::default()).await?;
        (facts.policies, facts.unreadable) = (listed.items, listed.unreadable);
    }
    match read::get(client, Some(namespace), DEPLOYMENT).await {
        Ok(deployment) => facts.operator = Operator::of(deployment.as_ref(), namespace),
        Err(error) => facts.notes.push(format!("it is not known whether the operator runs: {error}")),
    }
    Ok(facts)
}

/// Reads all GpuNodes, page by page.
pub async fn nodes(client: &Client) -> Result<Vec<GpuNode>, ReadError> {
    Ok(read::list(client, None, ListParams::default()).await?.items)
}
