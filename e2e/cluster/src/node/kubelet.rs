//! The configuration of a node's kubelet.

use std::fs;

use anyhow::{Context, Result};
use harness::{node_id::NodeId, paths::Paths};

use super::runtime::Runtime;

/// The port that kubelet serves.
pub const PORT: u16 = 10250;

/// Writes the configuration of a node's kubelet and returns kubelet's arguments.
pub fn configure(paths: &Paths, node: NodeId) -> Result<Vec<String>> {
    let (name, dir) = (node.name(), paths.cluster());
    let pki = dir.join("pki");
    let config = serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "port": PORT,
        "containerRuntimeEndpoint": format!("unix://{}", Runtime::of(node).socket()),
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": pki.join(format!("{name}.crt")),
        "tlsPrivateKeyFile": pki.join(format!("{name}.key")),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": false,
        "failSwapOn": false,
        "enforceNodeAllocatable": [],
        "resolvConf": "",
        // There is no DNS server; without this setting kubelet emits a warning for every pod.
        "clusterDNS": ["127.0.0.1"],
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        // A full disk of the machine must not evict pods.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // The defaults would make the tests take hours.
        "nodeStatusUpdateFrequency": "1s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "3s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
    });
    let file = dir.join(format!("{name}.kubelet.yaml"));
    fs::write(&file, serde_yaml::to_string(&config)?).with_context(|| format!("writing {}", file.display()))?;
    Ok(vec![
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", dir.join(format!("{name}.kubeconfig")).display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", node.address()),
        // Device plugins expect this path.
        "--root-dir=/var/lib/kubelet".into(),
    ])
}
