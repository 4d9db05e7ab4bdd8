//! The chart of this repository and the example policy.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use harness::{
    files::{copy, write},
    node_id::NodeId,
    paths::Paths,
    process::{output, run_logged},
    progress::Step,
    wait::poll,
};
use serde_json::json;

use super::{
    clients::{helm, kubectl},
    network,
    node::runtime::Runtime,
    state::State,
};

/// The name of the release. NVIDIA's documentation calls the release of its operator `gpu-operator`.
pub const RELEASE: &str = "nodestack";
/// The namespace of the release.
pub const NAMESPACE: &str = "gpu-operator";

/// The registries of all images in tests: the stand-ins', and, for simulated nodes, the defaults and those of the examples.
const REGISTRIES: [&str; 6] = [
    "localhost:5999",
    "nvcr.io/nvidia",
    "registry.k8s.io/dra-driver-nvidia",
    "gcr.io/gke-release",
    "registry.example.com",
    "registry.example.com:5000",
];

/// Installs or upgrades the chart, and waits until operator and probe are available.
pub fn install(paths: &Paths, state: &State) -> Result<()> {
    let step = Step::start("installing the chart");
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
    });
    let file = paths.cluster().join("namespace.json");
    write(&file, &namespace.to_string())?;
    kubectl(paths, &["apply", "-f", &file.display().to_string()])?;
    write(&values_file(paths), &values(state).to_string())?;
    let mut helm = helm(paths);
    helm.args(["upgrade", "--install", RELEASE])
        .arg(package(paths, &paths.cluster(), None)?)
        .args(["--namespace", NAMESPACE, "--values"])
        .arg(values_file(paths));
    if state.nodes.is_real() {
        helm.args(["--wait", "--timeout", "5m"]);
    }
    let pods = || kubectl(paths, &["get", "pods", "-n", NAMESPACE, "--no-headers"]).unwrap_or_default();
    run_logged(&mut helm, &paths.log("helm"), || step.tick("waiting for operator and probe"))
        .with_context(|| format!("pods in namespace {NAMESPACE}:\n{}", pods()))?;
    step.done();
    Ok(())
}

/// Packages the chart into a folder, and returns the archive. With `repository`, its images are there by default.
pub fn package(paths: &Paths, folder: &Path, repository: Option<&str>) -> Result<PathBuf> {
    let chart = tempfile::tempdir_in(&paths.base)?;
    copy(&paths.root.join("charts/gpu-operator"), chart.path())?;
    if let Some(repository) = repository {
        let file = chart.path().join("values.yaml");
        let values = fs::read_to_string(&file)?;
        let (default, published) = ("\n  repository: \"\"\n", format!("\n  repository: {repository}\n"));
        ensure!(values.matches(default).count() == 1, "values.yaml must contain repository: \"\" once");
        write(&file, &values.replace(default, &published))?;
    }
    let mut helm = helm(paths);
    let text = output(helm.arg("package").arg(chart.path()).arg("--destination").arg(folder))?;
    let (_, archive) = text.trim().rsplit_once(": ").with_context(|| format!("helm package printed {text}"))?;
    Ok(PathBuf::from(archive))
}

/// Restarts the pods of operator and probe if their images are among `images`: the tags are the same, so an upgrade would not.
pub fn restart(paths: &Paths, images: &BTreeSet<String>) -> Result<()> {
    for (image, workload) in [
        ("localhost:5999/gpu-operator:dev", "deployment/nodestack-gpu-operator"),
        ("localhost:5999/nvml-probe:dev", "daemonset/nodestack-nvml-probe"),
        ("localhost:5999/nvml-probe:dev", "daemonset/nodestack-gpu-detector"),
    ] {
        let exists = || kubectl(paths, &["get", workload, "--namespace", NAMESPACE]).is_ok();
        if images.contains(image) && exists() {
            kubectl(paths, &["rollout", "restart", workload, "--namespace", NAMESPACE])?;
        }
    }
    Ok(())
}

/// Returns the file with the values for the local cluster, for tests that install the chart themselves.
pub fn values_file(paths: &Paths) -> PathBuf {
    paths.cluster().join("values.json")
}

fn values(state: &State) -> serde_json::Value {
    json!({
        "image": {"repository": "localhost:5999", "tag": "dev"},
        // Pods reach the API server over their node's link: there is no service proxy, and a pod's own network has no route
        // out of its node.
        "hostNetwork": true,
        // Shorter than on a fleet, because tests and people wait for them.
        "detector": {"interval": "1s"},
        "probe": {"interval": "1s", "podMetrics": {"enabled": true}},
        // One replica: tests look for its pod, and on its node.
        "operator": {"replicas": 1, "affinity": affinity(state), "evictPods": true},
        // Shorter than the minute after which nodes are left, because a test waits for it to fail.
        "uninstall": {"timeout": "20s"},
        // A policy decides which pools have a DRA driver.
        "dra": {"enabled": true},
        // Everything runs under the restrictions that a cluster can have, except for digests: the images have only tags.
        "admission": {"allowedRegistries": REGISTRIES},
        "extraEnv": [
            {"name": "KUBERNETES_SERVICE_HOST", "value": network::CONTROL_PLANE},
            {"name": "KUBERNETES_SERVICE_PORT", "value": state.api_port.to_string()},
        ],
    })
}

/// Returns an affinity that keeps the operator away from nodes whose container runtime is restarted for their GPUs, so that
/// the restart does not disturb it.
fn affinity(state: &State) -> serde_json::Value {
    let old = state.nodes.real().filter(|node| Runtime::of(*node) != Runtime::Containerd2);
    let names: Vec<String> = old.map(NodeId::name).collect();
    if names.is_empty() {
        return json!({});
    }
    let elsewhere = json!({"key": "kubernetes.io/hostname", "operator": "NotIn", "values": names});
    let terms = json!({"nodeSelectorTerms": [{"matchExpressions": [elsewhere]}]});
    json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})
}

/// Applies the example policy.
pub fn apply_policy(paths: &Paths) -> Result<()> {
    let file = policy_file(paths).display().to_string();
    poll("the API's readiness for policies", Duration::from_mins(3), || {
        Ok(kubectl(paths, &["apply", "-f", &file]).map_err(|error| error.to_string()))
    })?;
    Ok(())
}

/// Returns the file of the example policy.
pub fn policy_file(paths: &Paths) -> PathBuf {
    paths.root.join("e2e/policy.yaml")
}
