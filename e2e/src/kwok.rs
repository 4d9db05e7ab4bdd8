//! Where no real node can run: an entry in the API that kwok keeps Ready. No container ever runs on it.

use std::{fs, path::Path, process::Command, time::Duration};

use anyhow::{Context, Result, bail};

use crate::{
    paths::Paths,
    process::{create, output, poll, tail},
    state::{NODE_NAME, records},
};

const NAME: &str = "kwok";

const STAGES: [&str; 3] = ["node/fast", "node/heartbeat-with-lease", "pod/fast"];

/// Starts kwok and one node that looks like a GKE node with eight H100.
pub(crate) fn start(paths: &Paths) -> Result<()> {
    // What a node and a pod do comes with kwok's own module.
    let mut list = Command::new("go");
    list.current_dir(paths.root.join("e2e/tools/kwok")).args(["list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kwok"]);
    let module = output(&mut list)?;
    let stages = Path::new(module.trim()).join("kustomize/stage");
    let mut command = Command::new(paths.tool(NAME));
    for folder in STAGES {
        for entry in fs::read_dir(stages.join(folder)).with_context(|| format!("kwok's stages {folder}"))? {
            let file = entry?.path();
            if file.extension().is_some_and(|ending| ending == "yaml") && !file.ends_with("kustomization.yaml") {
                command.arg("--config").arg(file);
            }
        }
    }
    command.arg("--kubeconfig").arg(paths.kubeconfig()).args([
        "--manage-all-nodes=false",
        "--manage-nodes-with-label-selector=type=kwok",
        "--server-address=127.0.0.1:0",
    ]);
    records(paths).spawn(NAME, &mut command, &paths.log(NAME))?;
    let node = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": NODE_NAME, "labels": {
            "type": "kwok",
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": NODE_NAME,
            "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
        }},
    });
    let file = paths.cluster().join("kwok-node.json");
    drop(create(&file)?);
    fs::write(&file, node.to_string())?;
    let kubectl = || {
        let mut kubectl = Command::new(paths.tool("kubectl"));
        kubectl.arg("--kubeconfig").arg(paths.kubeconfig());
        kubectl
    };
    output(kubectl().arg("apply").arg("-f").arg(&file))?;
    poll("the kwok node's readiness", Duration::from_mins(1), || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let seen = output(kubectl().args(["get", "node", NODE_NAME, "-o", ready]))?;
        if records(paths).alive(NAME).is_none() {
            bail!("kwok ended; the end of its log:\n{}", tail(&paths.log(NAME), 2_000));
        }
        Ok(if seen == "True" { Ok(()) } else { Err(format!("Ready={seen}")) })
    })
}

/// Whether kwok runs.
pub(crate) fn is_running(paths: &Paths) -> bool {
    records(paths).alive(NAME).is_some()
}

/// Ends kwok.
pub(crate) fn stop(paths: &Paths) -> Result<()> {
    records(paths).stop(NAME, Duration::from_secs(2))
}
