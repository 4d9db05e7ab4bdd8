//! The checks of the operator's namespace.

use std::collections::BTreeMap;

use gpu_operator_common::quantity;
use gpu_operator_crd::keys;
use k8s_openapi::{
    api::{
        admissionregistration::v1::RuleWithOperations,
        core::v1::{LimitRangeItem, ResourceQuota, ScopeSelector},
    },
    apimachinery::pkg::{api::resource::Quantity, apis::meta::v1::LabelSelector},
};
use kube::{
    ResourceExt,
    core::{Selector, SelectorExt},
};

use crate::check::facts::{Facts, Judged, Webhook, bad, count, good, listed};

/// The label of the Pod Security standard that is enforced.
const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// The label of every namespace with its name.
const NAME: &str = "kubernetes.io/metadata.name";
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

/// Returns whether a quota applies to all pods. Those with scopes apply to some, which are not judged.
fn applies_to_all(quota: &ResourceQuota) -> bool {
    quota.spec.as_ref().is_some_and(|spec| {
        spec.scopes.as_ref().is_none_or(Vec::is_empty)
            && spec.scope_selector.as_ref().is_none_or(|scope| *scope == ScopeSelector::default())
    })
}

pub fn compute_quota(facts: &Facts) -> Judged<'_> {
    let (quotas, ranges) = (facts.quotas.as_ref()?, facts.limits.as_ref()?);
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
    let mut found = Vec::new();
    for quota in quotas.iter().filter(|quota| applies_to_all(quota)) {
        let hard = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
        let limited: Vec<&str> = COMPUTE
            .into_iter()
            .filter(|key| hard.is_some_and(|hard| hard.contains_key(*key)) && !has_default(key))
            .collect();
        if !limited.is_empty() {
            found.push(format!("ResourceQuota {} limits {}", quota.name_any(), limited.join(", ")));
        }
    }
    if found.is_empty() {
        return good("none that rejects pods");
    }
    bad(
        format!("{}: pods that do not set it are rejected", found.join("; ")),
        "delete the quota, limit it to other pods by a scope, or add a LimitRange with defaults",
    )
}

pub fn pod_quota(facts: &Facts) -> Judged<'_> {
    let mut found = Vec::new();
    for quota in facts.quotas.as_ref()? {
        let status = quota.status.as_ref();
        let hard = status.and_then(|status| status.hard.as_ref());
        let used = status.and_then(|status| status.used.as_ref());
        for key in ["pods", "count/pods"] {
            let amount = |of: Option<&BTreeMap<String, Quantity>>| quantity::count(&of?.get(key)?.0).ok();
            let Some((hard, used)) = amount(hard).zip(amount(used)) else { continue };
            if used >= hard {
                found.push(format!("ResourceQuota {} is used up: {used} of {hard} pods", quota.name_any()));
            }
        }
    }
    if found.is_empty() {
        return good("none that is used up");
    }
    bad(found.join("; "), "raise the quota to ten pods for each node; the chart's own is set by resourceQuota.nodes")
}

pub fn default_limits(facts: &Facts) -> Judged<'_> {
    let mut found = Vec::new();
    for range in facts.limits.as_ref()? {
        let items =
            range.spec.iter().flat_map(|spec| &spec.limits).filter(|item| item.type_ != "PersistentVolumeClaim");
        let limits: Vec<String> = items.flat_map(limits).collect();
        if !limits.is_empty() {
            found.push(format!("LimitRange {} sets {}", range.name_any(), limits.join(", ")));
        }
    }
    if found.is_empty() {
        return good("none");
    }
    bad(
        format!("{}: containers that install drivers may be killed", found.join("; ")),
        "delete the LimitRange, or set the resources of the containers in the policy",
    )
}

fn limits(item: &LimitRangeItem) -> Vec<String> {
    let of = |what: &str, values: &Option<BTreeMap<String, Quantity>>| {
        let memory = values.as_ref().and_then(|values| values.get("memory"));
        memory.map(|memory| format!("{what} {} of memory", memory.0))
    };
    [of("a default limit of", &item.default), of("a maximum of", &item.max)].into_iter().flatten().collect()
}

pub fn blocking_webhooks(facts: &Facts) -> Judged<'_> {
    let webhooks = facts.webhooks.as_ref()?;
    let mut labels = facts.labels.as_ref()?.clone().unwrap_or_default();
    labels.insert(NAME.to_owned(), facts.namespace.clone());
    let blocking: Vec<&str> =
        webhooks.iter().filter(|webhook| blocks(webhook, &labels)).map(|webhook| webhook.name.as_str()).collect();
    if blocking.is_empty() {
        return good(format!("none of {}", count(webhooks.len(), "webhook")));
    }
    bad(
        format!("no pod of namespace {} is created while these do not answer: {}", facts.namespace, listed(&blocking)),
        format!(
            "exclude the namespace with a namespaceSelector ({NAME} NotIn {}), or set failurePolicy: Ignore",
            facts.namespace
        ),
    )
}

/// Returns whether a webhook blocks the probe's pods if it does not answer.
fn blocks(webhook: &Webhook, namespace: &BTreeMap<String, String>) -> bool {
    let of_probe = [(keys::NAME, keys::PROBE_NAME), keys::PART_OF];
    let of_probe = of_probe.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    webhook.fails_closed
        && !webhook.has_conditions
        && webhook.rules.iter().any(is_for_pods)
        && selects(&webhook.namespaces, namespace)
        && selects(&webhook.objects, &of_probe)
}

fn is_for_pods(rule: &RuleWithOperations) -> bool {
    let has = |values: &Option<Vec<String>>, wanted: &[&str]| {
        values.iter().flatten().any(|value| wanted.contains(&value.as_str()))
    };
    has(&rule.operations, &["CREATE", "*"])
        && has(&rule.api_groups, &["", "*"])
        && has(&rule.api_versions, &["v1", "*"])
        && has(&rule.resources, &["pods", "*", "*/*"])
        && rule.scope.as_deref() != Some("Cluster")
}

/// Returns whether a selector selects labels. One that cannot be parsed is assumed not to.
fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    Selector::try_from(selector.clone()).is_ok_and(|selector| selector.matches(labels))
}
