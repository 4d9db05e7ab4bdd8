//! Reads what checks are made from.

use gpu_operator_common::version;
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, keys};
use gpu_operator_plan::catalogue::Catalogue;
use k8s_openapi::{
    api::{
        admissionregistration::v1::{
            MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
            ValidatingWebhookConfiguration,
        },
        apps::v1::{DaemonSet, Deployment},
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        core::v1::{Event, LimitRange, Namespace, Pod, ResourceQuota},
        node::v1::RuntimeClass,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, CustomResourceExt, Resource, ResourceExt,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;

use crate::{
    check::facts::{Facts, Host, Read, Right, Webhook},
    read::{self, Listed, ReadError},
};

const NVIDIA_CRD: &str = "clusterpolicies.nvidia.com";
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
pub async fn gather(client: &Client, namespace: &str, before: bool, catalogue: Catalogue) -> Result<Facts, ReadError> {
    let kubernetes = reachable(version(client).await)?;
    let here = Some(namespace);
    let labels = read::get::<Namespace>(client, None, namespace).await;
    let labels = reachable(labels)?.map(|found| found.map(|found| found.labels().clone()));
    let rights = match &labels {
        Ok(found) if before => reachable(rights(client, namespace, found.is_some()).await)?,
        Err(_) if before => reachable(rights(client, namespace, false).await)?,
        _ => Ok(Vec::new()),
    };
    let (policies, gpu_nodes) = if before {
        (Ok(nothing()), Ok(nothing()))
    } else {
        let all = ListParams::default;
        (
            reachable(read::list::<ClusterGpuPolicy>(client, None, all()).await)?,
            reachable(read::list::<GpuNode>(client, None, all()).await)?,
        )
    };
    let pending = ListParams::default().fields("status.phase=Pending");
    let rejected = ListParams::default().fields("reason=FailedCreate");
    Ok(Facts {
        version: version::BUILD_LABELS[0].1.to_owned(),
        namespace: namespace.to_owned(),
        catalogue,
        kubernetes,
        rights,
        nodes: all::<Host>(client, None).await?,
        labels,
        quotas: all::<ResourceQuota>(client, here).await?,
        limits: all::<LimitRange>(client, here).await?,
        webhooks: webhooks(client).await?,
        crds: reachable(own_crds(client).await)?,
        nvidia_crd: reachable(read::get::<CustomResourceDefinition>(client, None, NVIDIA_CRD).await)?
            .map(|found| found.is_some()),
        operators: items::<Deployment>(
            client,
            None,
            ListParams::default().labels(&keys::selector(keys::OPERATOR_NAME)),
        )
        .await?,
        daemon_sets: all::<DaemonSet>(client, None).await?,
        admission: all::<ValidatingAdmissionPolicy>(client, None).await?,
        bindings: if before { Ok(Vec::new()) } else { all::<ValidatingAdmissionPolicyBinding>(client, None).await? },
        pending: if before { Ok(Vec::new()) } else { items::<Pod>(client, here, pending).await? },
        rejections: if before { Ok(Vec::new()) } else { items::<Event>(client, here, rejected).await? },
        policies,
        gpu_nodes,
        runtime_classes: if before { Ok(Vec::new()) } else { all::<RuntimeClass>(client, None).await? },
    })
}

fn nothing<K>() -> Listed<K> {
    Listed { items: Vec::new(), unreadable: Vec::new() }
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
    for name in [ClusterGpuPolicy::crd_name(), GpuNode::crd_name()] {
        found.extend(read::get::<CustomResourceDefinition>(client, None, name).await?);
    }
    Ok(found)
}

async fn webhooks(client: &Client) -> Result<Read<Vec<Webhook>>, ReadError> {
    let validating = all::<ValidatingWebhookConfiguration>(client, None).await?;
    let mutating = all::<MutatingWebhookConfiguration>(client, None).await?;
    let (validating, mutating) = match (validating, mutating) {
        (Ok(validating), Ok(mutating)) => (validating, mutating),
        (Err(error), _) | (_, Err(error)) => return Ok(Err(error)),
    };
    let mut found = Vec::new();
    for configuration in validating {
        let of = format!("ValidatingWebhookConfiguration {}", configuration.name_any());
        found.extend(configuration.webhooks.into_iter().flatten().map(|webhook| Webhook {
            name: format!("{of} ({})", webhook.name),
            fails_closed: fails_closed(webhook.failure_policy.as_deref()),
            has_conditions: webhook.match_conditions.is_some_and(|conditions| !conditions.is_empty()),
            rules: webhook.rules.unwrap_or_default(),
            namespaces: webhook.namespace_selector.unwrap_or_default(),
            objects: webhook.object_selector.unwrap_or_default(),
        }));
    }
    for configuration in mutating {
        let of = format!("MutatingWebhookConfiguration {}", configuration.name_any());
        found.extend(configuration.webhooks.into_iter().flatten().map(|webhook| Webhook {
            name: format!("{of} ({})", webhook.name),
            fails_closed: fails_closed(webhook.failure_policy.as_deref()),
            has_conditions: webhook.match_conditions.is_some_and(|conditions| !conditions.is_empty()),
            rules: webhook.rules.unwrap_or_default(),
            namespaces: webhook.namespace_selector.unwrap_or_default(),
            objects: webhook.object_selector.unwrap_or_default(),
        }));
    }
    Ok(Ok(found))
}

fn fails_closed(policy: Option<&str>) -> bool {
    policy.is_none_or(|policy| policy == "Fail")
}
