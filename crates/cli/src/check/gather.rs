//! Reads what checks are made from.

use gpu_operator_common::version;
use gpu_operator_crd::{keys, schema_revision::crd_names};
use gpu_operator_plan::world::{NodeFacts, TrimmedNode};
use k8s_openapi::{
    api::{
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::Namespace,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;

use crate::{
    check::facts::{Facts, Read, Right},
    read::{self, ReadError},
};

/// The kinds of objects in the chart, as group and plural, and whether they are in its namespace.
const IN_CHART: [(&str, &str, bool); 13] = [
    ("", "namespaces", false),
    ("apiextensions.k8s.io", "customresourcedefinitions", false),
    ("rbac.authorization.k8s.io", "clusterroles", false),
    ("rbac.authorization.k8s.io", "clusterrolebindings", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicies", false),
    ("admissionregistration.k8s.io", "validatingadmissionpolicybindings", false),
    ("scheduling.k8s.io", "priorityclasses", false),
    ("rbac.authorization.k8s.io", "roles", true),
    ("rbac.authorization.k8s.io", "rolebindings", true),
    // Helm's record of the release.
    ("", "secrets", true),
    ("", "serviceaccounts", true),
    ("apps", "daemonsets", true),
    ("apps", "deployments", true),
];

/// Reads what the checks before or after the installation are made from. The operator is in `namespace`.
pub async fn gather(client: &Client, namespace: &str, before: bool) -> Result<Facts, ReadError> {
    let kubernetes = reachable(version(client).await)?;
    let here = Some(namespace);
    let of_operator = || ListParams::default().labels(&keys::selector(keys::OPERATOR_NAME));
    let nodes = all::<TrimmedNode>(client, None).await?;
    let mut facts = Facts {
        before,
        version: version::BUILD_LABELS[0].1.to_owned(),
        namespace: namespace.to_owned(),
        kubernetes,
        rights: Ok(Vec::new()),
        nodes: nodes.map(|nodes| nodes.iter().map(NodeFacts::of).collect()),
        labels: Ok(None),
        quotas: Ok(Vec::new()),
        limits: Ok(Vec::new()),
        crds: reachable(own_crds(client).await)?,
        operators: items(client, None, of_operator()).await?,
        pods: Ok(Vec::new()),
        leases: Ok(Vec::new()),
        daemon_sets: all(client, here.filter(|_| !before)).await?,
        admission: all(client, None).await?,
        bindings: Ok(Vec::new()),
    };
    if before {
        let found = reachable(read::get::<Namespace>(client, None, namespace).await)?;
        let exists = matches!(found, Ok(Some(_)));
        facts.labels = found.map(|found| found.map(|found| found.labels().clone()));
        facts.rights = reachable(rights(client, namespace, exists).await)?;
        facts.quotas = all(client, here).await?;
        facts.limits = all(client, here).await?;
    } else {
        facts.pods = items(client, here, of_operator()).await?;
        facts.leases = items(client, here, of_operator()).await?;
        facts.bindings = all(client, None).await?;
    }
    Ok(facts)
}

/// Returns an error if the API server does not answer: then nothing is known.
fn reachable<T>(read: Read<T>) -> Result<Read<T>, ReadError> {
    match read {
        Err(error @ ReadError::Unreachable(_)) => Err(error),
        other => Ok(other),
    }
}

async fn all<K>(client: &Client, namespace: Option<&str>) -> Result<Read<Vec<K>>, ReadError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    items(client, namespace, ListParams::default()).await
}

async fn items<K>(client: &Client, namespace: Option<&str>, params: ListParams) -> Result<Read<Vec<K>>, ReadError>
where
    K: Resource<DynamicType = ()> + DeserializeOwned + Clone + std::fmt::Debug,
{
    let listed = reachable(read::list::<K>(client, namespace, params).await)?;
    Ok(listed.map(|listed| listed.items))
}

/// Every user may read it, so that any other answer means that the API server does not work.
async fn version(client: &Client) -> Read<String> {
    match client.apiserver_version().await {
        Ok(version) => Ok(version.git_version),
        Err(kube::Error::Api(status)) if status.is_forbidden() => Err(ReadError::Forbidden("get /version".to_owned())),
        Err(error) => Err(ReadError::Unreachable(error)),
    }
}

/// Returns which objects of the chart the user may create. The namespace is one of them unless it exists.
async fn rights(client: &Client, namespace: &str, namespace_exists: bool) -> Read<Vec<Right>> {
    const RESOURCE: &str = "selfsubjectaccessreviews.authorization.k8s.io";
    let api = Api::<SelfSubjectAccessReview>::all(client.clone());
    let mut rights = Vec::new();
    for (group, plural, is_namespaced) in IN_CHART {
        if plural == "namespaces" && namespace_exists {
            continue;
        }
        let attributes = ResourceAttributes {
            verb: Some("create".to_owned()),
            group: Some(group.to_owned()),
            resource: Some(plural.to_owned()),
            namespace: is_namespaced.then(|| namespace.to_owned()),
            ..ResourceAttributes::default()
        };
        let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(attributes), ..Default::default() };
        let review = SelfSubjectAccessReview { spec, ..SelfSubjectAccessReview::default() };
        let answer = api.create(&PostParams::default(), &review).await.map_err(|error| match &error {
            kube::Error::Api(status) if status.is_forbidden() => ReadError::Forbidden(format!("create {RESOURCE}")),
            kube::Error::Api(_) | kube::Error::SerdeError(_) => {
                ReadError::Rejected(format!("create {RESOURCE}"), error)
            }
            _ => ReadError::Unreachable(error),
        })?;
        let dot = if group.is_empty() { "" } else { "." };
        let is_allowed = answer.status.is_some_and(|status| status.allowed);
        rights.push(Right { name: format!("{plural}{dot}{group}"), is_allowed });
    }
    Ok(rights)
}

async fn own_crds(client: &Client) -> Read<Vec<CustomResourceDefinition>> {
    let mut found = Vec::new();
    for name in crd_names() {
        found.extend(read::get::<CustomResourceDefinition>(client, None, name).await?);
    }
    Ok(found)
}
