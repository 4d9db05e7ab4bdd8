//! kwok, which keeps simulated nodes alive: a fleet, and where no real node can run the one that stands for it. No
//! container ever runs on them.

use std::{fs, process::Command, time::Duration};

use anyhow::{Result, bail};

use crate::{
    paths::Paths,
    process::{create, output, poll, tail},
    state::{NodeId, records},
};

const NAME: &str = "kwok";

/// Starts kwok afresh: it keeps the leases of all nodes that are labelled `type=kwok`.
///
/// One that has seen a node of a name come, go and come again may have its queue of leases stuck for ever (v0.8.0, where the
/// name is in the queue twice), and then lets those of all nodes run out. So no two fleets share one.
pub(crate) fn start_afresh(paths: &Paths) -> Result<()> {
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

/// Starts kwok and one node that looks like a GKE node with eight H100.
pub(crate) fn start(paths: &Paths) -> Result<()> {
    start_afresh(paths)?;
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
        let seen = output(kubectl().args(["get", "node", &name, "-o", ready]))?;
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
