//! The checks of the operator's namespace.

use std::collections::BTreeMap;

use gpu_operator_common::quantity;
use k8s_openapi::{
    api::core::v1::{LimitRange, ResourceQuota, ScopeSelector},
    apimachinery::pkg::api::resource::Quantity,
};
use kube::ResourceExt;

use crate::check::facts::{Facts, Judged, bad, good};

/// The label of the Pod Security standard that is enforced.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// Pods must set requests or limits of these resources if a quota limits them.
const COMPUTE: [&str; 6] = ["cpu", "memory", "requests.cpu", "requests.memory", "limits.cpu", "limits.memory"];

pub fn pod_security(facts: &Facts) -> Judged<'_> {
    let Some(labels) = facts.labels.as_ref()? else {
        return good(format!("namespace {} does not exist yet", facts.namespace));
    };
    match labels.get(ENFORCE).map(String::as_str) {
        Some(standard @ ("baseline" | "restricted")) => bad(
            format!("namespace {} enforces the standard {standard}, which rejects privileged pods", facts.namespace),
            format!("kubectl label namespace {} --overwrite {ENFORCE}=privileged", facts.namespace),
        ),
        Some(standard) => good(standard),
        None => good("the default of the cluster"),
    }
}

pub fn resource_quota(facts: &Facts) -> Judged<'_> {
    let (quotas, ranges) = (facts.quotas.as_ref()?, facts.limits.as_ref()?);
    let (mut found, mut fixes) = (Vec::new(), Vec::new());
    let limited: Vec<String> = quotas.iter().filter_map(|quota| without_defaults(quota, ranges)).collect();
    if !limited.is_empty() {
        found.push(format!("{}: pods that do not set it are rejected", limited.join("; ")));
        fixes.push("limit the quota to other pods by a scope, or add a LimitRange with defaults");
    }
    let used_up: Vec<String> = quotas.iter().filter_map(used_up).collect();
    if !used_up.is_empty() {
        found.extend(used_up);
        fixes.push("raise the quota to ten pods for each node; the chart's own is set by resourceQuota.nodes");
    }
    if found.is_empty() { good("none that rejects pods") } else { bad(found.join("; "), fixes.join("; ")) }
}

/// Returns a quota that applies to all pods and limits resources for which the namespace has no defaults. One with scopes applies to some
/// pods, which are not judged.
fn without_defaults(quota: &ResourceQuota, ranges: &[LimitRange]) -> Option<String> {
    let items = || ranges.iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| &spec.limits);
    let has_default = |key: &str| {
        let (of_limits, resource) = match key.split_once('.') {
            Some((kind, resource)) => (kind == "limits", resource),
            None => (false, key),
        };
        let sets =
            |values: &Option<BTreeMap<String, Quantity>>| values.as_ref().is_some_and(|of| of.contains_key(resource));
        // A default limit is the default request as well.
        items()
            .any(|item| item.type_ == "Container" && (sets(&item.default) || !of_limits && sets(&item.default_request)))
    };
    let spec = quota.spec.as_ref()?;
    let has_scopes = spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty())
        || spec.scope_selector.as_ref().is_some_and(|scope| *scope != ScopeSelector::default());
    let hard = spec.hard.as_ref()?;
    let limited: Vec<&str> = COMPUTE.into_iter().filter(|key| hard.contains_key(*key) && !has_default(key)).collect();
    let applies = !has_scopes && !limited.is_empty();
    applies.then(|| format!("ResourceQuota {} limits {}", quota.name_any(), limited.join(", ")))
}

/// Returns a quota that allows no more pods.
fn used_up(quota: &ResourceQuota) -> Option<String> {
    let status = quota.status.as_ref()?;
    ["pods", "count/pods"].into_iter().find_map(|key| {
        let amount = |of: &Option<BTreeMap<String, Quantity>>| quantity::count(&of.as_ref()?.get(key)?.0).ok();
        let (hard, used) = (amount(&status.hard)?, amount(&status.used)?);
        (used >= hard).then(|| format!("ResourceQuota {} is used up: {used} of {hard} pods", quota.name_any()))
    })
}
