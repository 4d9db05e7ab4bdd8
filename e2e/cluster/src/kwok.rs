//! kwok, which keeps simulated nodes alive: those of a fleet, and the single node of a cluster without real nodes. Containers
//! never run on them.

use std::{process::Command, time::Duration};

use anyhow::{Result, bail};
use harness::{
    files::{tail, write},
    node_id::NodeId,
    paths::Paths,
    records::records,
    wait::poll,
};

use super::clients::kubectl;

const NAME: &str = "kwok";

/// Starts a new kwok process, which renews the leases of all nodes with label `type=kwok`.
///
/// If a node is deleted and created again under the same name, kwok v0.8.0 may put the name into its queue of leases twice,
/// after which the queue is stuck and the leases of all nodes expire. So every fleet gets its own process.
pub fn restart(paths: &Paths) -> Result<()> {
    stop(paths)?;
    let mut command = Command::new(paths.tool(NAME));
    command
        .arg("--kubeconfig")
        .arg(paths.kubeconfig())
        .arg("--config")
        .arg(paths.root.join("e2e/kwok/kwok.yaml"))
        .args([
            "--manage-all-nodes=false",
            "--manage-nodes-with-label-selector=type=kwok",
            "--server-address=127.0.0.1:0",
            "--v=WARN",
        ]);
    records(paths).spawn(NAME, &mut command, &paths.log(NAME))
}

/// Starts kwok, and creates one node with the labels of a GKE node with H100 GPUs.
pub fn start(paths: &Paths) -> Result<()> {
    restart(paths)?;
    let name = NodeId::FIRST.name();
    let node = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {
            "type": "kwok",
            "kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name,
            "cloud.google.com/gke-accelerator": "nvidia-h100-80gb",
        }},
    });
    let file = paths.cluster().join("kwok-node.json");
    write(&file, &node.to_string())?;
    kubectl(paths, &["apply", "-f", &file.display().to_string()])?;
    poll("the kwok node's readiness", Duration::from_mins(3), || {
        let ready = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        let status = kubectl(paths, &["get", "node", &name, "-o", ready])?;
        if records(paths).alive(NAME).is_none() {
            bail!("kwok ended; the end of its log:\n{}", tail(&paths.log(NAME), 2_000));
        }
        Ok(if status == "True" { Ok(()) } else { Err(format!("Ready={status}")) })
    })
}

pub fn is_running(paths: &Paths) -> bool {
    records(paths).alive(NAME).is_some()
}

pub fn stop(paths: &Paths) -> Result<()> {
    records(paths).stop(NAME, Duration::from_secs(2))
}
