//! The admission policies of the chart: what each account may write, although its role allows more.

mod detector;
mod dra_driver;
mod enforced;
mod images;
mod kubelet;
mod nodes;
mod probe;
mod tenant;

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail, ensure};
use cluster_client::{handle::Cluster, permissions::TEST_AGENT};
use gpu_operator_crd::GpuNode;
use harness::wait::eventually;
use http::header::{HeaderValue, USER_AGENT};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};

use crate::support::{Fixture, SHOWN, test};

/// The operator's service account.
const OPERATOR: &str = "nodestack-gpu-operator";

/// Returns a client with a token of a service account of the chart's namespace, which is also the client's default namespace.
async fn account(f: &Fixture, name: &str) -> Result<Client> {
    client(f, &["create", "token", name, "-n", f.cluster.namespace()]).await
}

/// Like [`account`], with a token that names a pod of that account and its node.
async fn account_of_pod(f: &Fixture, name: &str, pod: &str) -> Result<Client> {
    let namespace = f.cluster.namespace();
    client(f, &["create", "token", name, "-n", namespace, "--bound-object-kind=Pod", "--bound-object-name", pod]).await
}

async fn client(f: &Fixture, create: &[&str]) -> Result<Client> {
    let token = f.cluster.kubectl(create)?;
    let kubeconfig = Kubeconfig::read_from(f.cluster.kubeconfig())?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    f.cluster.namespace().clone_into(&mut config.default_namespace);
    // The requests of a test do not show which permissions the account needs.
    config.headers.push((USER_AGENT, HeaderValue::from_static(TEST_AGENT)));
    config.auth_info = serde_json::from_value(json!({"token": token.trim()}))?;
    Ok(Client::try_from(config)?)
}

fn gpu_node(name: &str, spec: &Value) -> Result<GpuNode> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "gpu.nodestack.dev/v1alpha1", "kind": "GpuNode", "metadata": {"name": name}, "spec": spec,
    }))?)
}

/// Asserts that a request was denied by role or policy, and not rejected for another reason.
fn denied<T: std::fmt::Debug>(what: &str, outcome: Result<T, kube::Error>, words: &str) -> Result<()> {
    match outcome {
        Err(kube::Error::Api(status)) if status.is_forbidden() && status.message.contains(words) => Ok(()),
        other => bail!("{what}: expected a denial with {words:?}, got {other:?}"),
    }
}

/// Waits until the API server has checked the types of the policies that `selector` selects, asserts that it found no error, and
/// returns their names.
async fn well_typed(cluster: &Cluster, selector: &str) -> Result<BTreeSet<String>> {
    eventually(SHOWN, "policies without type errors", || async {
        let list = cluster.kubectl(&["get", "validatingadmissionpolicies", "-l", selector, "-o=json"])?;
        let list: Value = serde_json::from_str(&list)?;
        let mut names = BTreeSet::new();
        for policy in list["items"].as_array().context("no list")? {
            let (metadata, status) = (&policy["metadata"], &policy["status"]);
            let rules = policy["spec"]["matchConstraints"]["resourceRules"].as_array().context("no rules")?;
            let is_checked = rules.iter().all(|rule| rule["apiVersions"] != json!(["*"]));
            ensure!(is_checked, "{}: no type is checked, because a rule names no version", metadata["name"]);
            ensure!(status["observedGeneration"] == metadata["generation"], "not checked yet: {policy}");
            let errors = &status["typeChecking"]["expressionWarnings"];
            ensure!(errors.is_null(), "{}: {errors}", metadata["name"]);
            names.extend(metadata["name"].as_str().map(str::to_owned));
        }
        Ok(names)
    })
    .await
}

#[test]
fn the_admission_policies_have_no_type_errors() {
    test(async |f| {
        let names = well_typed(&f.cluster, &format!("app.kubernetes.io/instance={}", f.cluster.release())).await?;
        let expected = ["nodestack-gpu-operator-images", "nodestack-gpu-operator-nodes"];
        let accounts = ["nodestack-nvml-probe", "nodestack-dra-driver"];
        let expected = expected.into_iter().chain(accounts).map(str::to_owned).collect();
        ensure!(names == expected, "{names:?}");
        Ok(())
    });
}
