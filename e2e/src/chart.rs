//! Our chart and the example policy.

use std::{
    collections::BTreeSet,
    fmt::Write,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result};
use serde_json::json;

use crate::{
    Containerd, machines, network,
    paths::Paths,
    process::{create, output, poll, run_logged},
    progress::Step,
    state::{NodeId, State},
};

/// The release and its namespace.
pub(crate) const RELEASE: &str = "gpu-operator";

/// Installs the chart, or upgrades what is installed, and waits until operator and probe are available.
pub(crate) fn install(paths: &Paths, state: &State) -> Result<()> {
    let step = Step::start("installing the chart");
    let namespace = paths.cluster().join("namespace.json");
    write(
        &namespace,
        &json!({
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": RELEASE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
        }),
    )?;
    kubectl(paths, &["apply", "-f", &namespace.display().to_string()])?;
    write(&values_file(paths), &values(state))?;
    let mut helm = helm(paths);
    helm.args(["upgrade", "--install", RELEASE])
        .arg(paths.root.join("charts/gpu-operator"))
        .args(["--namespace", RELEASE, "--values"])
        .arg(values_file(paths));
    if state.nodes.is_real() {
        helm.args(["--wait", "--timeout", "2m"]);
    }
    let pods = || kubectl(paths, &["get", "pods", "-n", RELEASE, "--no-headers"]).unwrap_or_default();
    run_logged(&mut helm, &paths.log("helm"), || step.tick("waiting for operator and probe"))
        .with_context(|| format!("pods in namespace {RELEASE}:\n{}", pods()))?;
    step.done();
    Ok(())
}

/// Makes our pods run the images of these names anew: their tags have not changed, so nothing else would.
pub(crate) fn restart(paths: &Paths, images: &BTreeSet<String>) -> Result<()> {
    for (image, workload) in [
        ("localhost:5999/gpu-operator:dev", "deployment/gpu-operator"),
        ("localhost:5999/nvml-probe:dev", "daemonset/nvml-probe"),
    ] {
        let there = || kubectl(paths, &["get", workload, "--namespace", RELEASE]).is_ok();
        if images.contains(image) && there() {
            kubectl(paths, &["rollout", "restart", workload, "--namespace", RELEASE])?;
        }
    }
    Ok(())
}

/// The values that the local cluster needs, for tests that install the chart themselves.
pub(crate) fn values_file(paths: &Paths) -> PathBuf {
    paths.cluster().join("values.json")
}

fn values(state: &State) -> serde_json::Value {
    json!({
        "image": {"repository": "localhost:5999", "tag": "dev"},
        // Pods reach the API server over their node's link: there is no service proxy here, and a pod's own network leads
        // nowhere.
        "hostNetwork": true,
        // What is a matter of a minute on a fleet is watched by a person here.
        "probe": {"interval": "2s"},
        "operator": {"affinity": affinity(state)},
        "extraEnv": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": network::CONTROL_PLANE},
            {"name": "KUBERNETES_SERVICE_PORT", "value": state.api_port.to_string()},
        ],
    })
}

/// Away from nodes whose container runtime is restarted for their GPUs: what happens to the operator is to be seen by itself.
fn affinity(state: &State) -> serde_json::Value {
    let old = state.nodes.real().filter(|node| machines::containerd(*node) == Containerd::One);
    let names: Vec<String> = old.map(NodeId::name).collect();
    if names.is_empty() {
        return json!({});
    }
    let elsewhere = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

/// Applies the example policy.
pub(crate) fn apply_policy(paths: &Paths) -> Result<()> {
    let file = policy_file(paths).display().to_string();
    poll("the API's readiness for policies", Duration::from_secs(20), || {
        Ok(kubectl(paths, &["apply", "-f", &file]).map_err(|error| error.to_string()))
    })?;
    Ok(())
}

/// The example policy.
pub(crate) fn policy_file(paths: &Paths) -> PathBuf {
    paths.root.join("e2e/policy.yaml")
}

/// All that tells why something failed on these nodes, as text: policies and the operator's log; and of each node its pods,
/// Events, status and logs.
pub(crate) fn diagnosis(paths: &Paths, nodes: impl IntoIterator<Item = String>) -> String {
    let mut text = String::new();
    let mut ask = |args: &[&str]| {
        let answer = kubectl(paths, args).unwrap_or_else(|error| format!("{error:#}"));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "--- kubectl {}\n{}", args.join(" "), answer.trim_end());
    };
    ask(&["get", "nodes", "-o", "wide"]);
    ask(&["get", "daemonsets", "-A", "-o", "wide"]);
    ask(&["get", "clustergpupolicies", "-o", "yaml"]);
    ask(&["logs", "-n", RELEASE, "deployment/gpu-operator", "--tail=100"]);
    for node in nodes {
        let here = format!("--field-selector=spec.nodeName={node}");
        ask(&["get", "gpunode", &node, "-o", "yaml"]);
        ask(&["get", "events", "-A", &format!("--field-selector=involvedObject.name={node}")]);
        ask(&["get", "pods", "-A", "-o", "wide", &here]);
        ask(&["describe", "pods", "-n", RELEASE, &here]);
        let pods = kubectl(paths, &["get", "pods", "-n", RELEASE, "-o", "name", &here]).unwrap_or_default();
        for pod in pods.lines() {
            ask(&["logs", "-n", RELEASE, pod, "--all-containers", "--prefix", "--tail=60"]);
        }
    }
    text
}

/// kubectl for the running cluster.
pub(crate) fn kubectl(paths: &Paths, args: &[&str]) -> Result<String> {
    output(Command::new(paths.tool("kubectl")).arg("--kubeconfig").arg(paths.kubeconfig()).args(args))
}

/// helm for the running cluster, its own files under `target/e2e`.
pub(crate) fn helm(paths: &Paths) -> Command {
    let mut command = Command::new(paths.tool("helm"));
    let own = |name: &str| paths.cluster().join("helm").join(name);
    command
        .env("KUBECONFIG", paths.kubeconfig())
        .env("HELM_CACHE_HOME", own("cache"))
        .env("HELM_CONFIG_HOME", own("config"))
        .env("HELM_DATA_HOME", own("data"));
    command
}

fn write(path: &Path, value: &serde_json::Value) -> Result<()> {
    drop(create(path)?);
    fs::write(path, value.to_string())?;
    Ok(())
}
