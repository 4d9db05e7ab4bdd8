//! The accounts of operator (which is the hook's, too), probe and detector use every permission that the chart grants them, and have all that they need. Their requests in
//! all other tests show that, so `cargo xtask test` runs this one after them.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use cluster::clients::{DETECTOR, OPERATOR, PROBE};
use cluster_client::{
    handle::Cluster,
    permissions::{Need, Permission},
};
use serde_json::Value;

/// Permissions that a run need not use, each with the reason why the chart grants it.
const OPTIONAL: [(&str, &str); 4] = [
    ("patch events.events.k8s.io", "only an Event that is repeated within minutes is counted instead of created"),
    ("create gpunodes.gpu.nodestack.dev", "usually the probe has created it"),
    ("delete gpunodes.gpu.nodestack.dev", "usually the garbage collector has deleted it with its Node"),
    ("get deployments.apps", "only if a policy is being deleted when the chart is uninstalled"),
];

/// What the roles of one account grant.
#[derive(Default)]
struct Grants {
    /// The namespace of the chart.
    namespace: String,
    everywhere: BTreeSet<Permission>,
    /// Those for objects of that namespace only.
    here: BTreeSet<Permission>,
}

impl Grants {
    /// Reads the roles of these names.
    fn of(roles: &[Value], names: &[&str], namespace: &str) -> Result<Self> {
        let mut grants = Self { namespace: namespace.to_owned(), ..Self::default() };
        for role in roles.iter().filter(|role| names.iter().any(|name| role["metadata"]["name"] == *name)) {
            match role["kind"].as_str() {
                Some("ClusterRole") => grants.everywhere.extend(permissions(role)?),
                Some("Role") => grants.here.extend(permissions(role)?),
                _ => {}
            }
        }
        ensure!(!grants.everywhere.is_empty(), "no ClusterRole of {names:?}");
        Ok(grants)
    }

    /// Returns what is wrong: requests without a permission, and permissions without a request. What is granted everywhere is unused
    /// in a Role.
    fn problems(&self, needs: &BTreeSet<Need>) -> Vec<String> {
        let (mut everywhere, mut here) = (self.everywhere.clone(), self.here.clone());
        let mut problems = Vec::new();
        for Need { permission, namespace, lacks } in needs {
            let is_here = namespace.as_ref() == Some(&self.namespace) && self.here.contains(permission);
            if !(is_here || self.everywhere.contains(permission)) {
                problems.push(format!("not granted: {permission}, namespace {namespace:?}"));
            } else if *lacks {
                // The chart was being uninstalled, which removes the roles before the pods have ended.
            } else if self.everywhere.contains(permission) {
                everywhere.remove(permission);
            } else {
                here.remove(permission);
            }
        }
        let unused = |permission: &&Permission| {
            let text = permission.to_string();
            OPTIONAL.iter().all(|(known, _)| *known != text)
        };
        problems.extend(everywhere.iter().filter(unused).map(|left| format!("unused in the ClusterRole: {left}")));
        problems.extend(here.iter().filter(unused).map(|left| format!("unused in the Role: {left}")));
        problems
    }
}

fn permissions(role: &Value) -> Result<Vec<Permission>> {
    let texts = |rule: &Value, field: &str| -> Result<Vec<String>> { Ok(serde_json::from_value(rule[field].clone())?) };
    let mut all = Vec::new();
    for rule in role["rules"].as_array().context("no rules")? {
        for group in texts(rule, "apiGroups")? {
            for resource in texts(rule, "resources")? {
                let verbs = texts(rule, "verbs")?.into_iter();
                all.extend(verbs.map(|verb| Permission { group: group.clone(), resource: resource.clone(), verb }));
            }
        }
    }
    Ok(all)
}

/// Renders the chart with the values of the running cluster, and all rights of the hook.
fn roles(cluster: &Cluster) -> Result<Vec<Value>> {
    let (chart, values) = (cluster.chart().display().to_string(), cluster.values().display().to_string());
    let release = ["template", cluster.release(), &chart, "-n", cluster.namespace(), "--values", &values];
    let yaml = cluster.helm(&[&release[..], &["--set", "uninstall.policies=Delete"]].concat())?;
    let documents = serde_yaml::Deserializer::from_str(&yaml).map(serde::Deserialize::deserialize);
    Ok(documents.collect::<Result<_, serde_yaml::Error>>()?)
}

#[test]
fn each_account_uses_exactly_what_the_chart_grants() -> Result<()> {
    let cluster = tokio::runtime::Runtime::new()?.block_on(Cluster::connect())?;
    let roles = roles(&cluster)?;
    let mut problems = Vec::new();
    for (user, names) in [
        (OPERATOR, &["nodestack-gpu-operator", "nodestack-gpu-operator-uninstall"][..]),
        (PROBE, &["nodestack-nvml-probe"]),
        (DETECTOR, &["nodestack-gpu-detector"]),
    ] {
        let grants = Grants::of(&roles, names, cluster.namespace())?;
        let mut needs = BTreeSet::new();
        for audit in cluster.audits() {
            needs.extend(audit.needs(user)?);
        }
        let found = grants.problems(&needs);
        problems.extend(found.into_iter().map(|problem| format!("{names:?}: {problem}")));
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

#[test]
fn differences_between_grants_and_needs_are_found() {
    let permission = |verb: &str| Permission { group: "apps".into(), resource: "daemonsets".into(), verb: verb.into() };
    let need = |verb: &str, namespace: Option<&str>| Need {
        permission: permission(verb),
        namespace: namespace.map(str::to_owned),
        lacks: false,
    };
    let problems = |everywhere: &[&str], here: &[&str], needs: &[Need]| {
        let set = |verbs: &[&str]| verbs.iter().map(|verb| permission(verb)).collect();
        let grants = Grants { namespace: "own".into(), everywhere: set(everywhere), here: set(here) };
        grants.problems(&needs.iter().cloned().collect())
    };
    let own = Some("own");
    assert!(problems(&["list"], &["get"], &[need("list", None), need("get", own)]).is_empty());
    assert_eq!(
        problems(&["list", "get"], &[], &[need("list", None)]),
        ["unused in the ClusterRole: get daemonsets.apps"]
    );
    // The Role repeats the ClusterRole.
    assert_eq!(problems(&["list"], &["list"], &[need("list", own)]), ["unused in the Role: list daemonsets.apps"]);
    let elsewhere = problems(&[], &["get"], &[need("get", own), need("get", Some("other"))]);
    assert_eq!(elsewhere, ["not granted: get daemonsets.apps, namespace Some(\"other\")"]);
    let denied = [Need { lacks: true, ..need("list", None) }];
    assert_eq!(problems(&["list"], &[], &denied), ["unused in the ClusterRole: list daemonsets.apps"]);
    assert_eq!(problems(&[], &[], &denied), ["not granted: list daemonsets.apps, namespace None"]);
}
