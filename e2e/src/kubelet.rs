//! A kubelet's configuration.

use std::fs;

use anyhow::{Context, Result};

use crate::{containerd, paths::Paths, state::NodeId};

/// Writes a kubelet's configuration and returns its arguments.
pub(crate) fn configure(paths: &Paths, node: NodeId) -> Result<Vec<String>> {
    let (name, dir) = (node.name(), paths.cluster());
    let pki = dir.join("pki");
    let config = serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "containerRuntimeEndpoint": format!("unix://{}", containerd::SOCKET),
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
        // Nobody answers there, and nothing leaves the pod; without it kubelet warns about every pod.
        "clusterDNS": ["127.0.0.1"],
        "makeIPTablesUtilChains": false,
        "oomScoreAdj": 0,
        // However full the machine's disk is, nothing is evicted here.
        "evictionHard": {"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        // What takes minutes on a real node would make the tests take hours.
        "nodeStatusUpdateFrequency": "2s",
        "crashLoopBackOff": {"maxContainerRestartPeriod": "10s"},
        "featureGates": {"KubeletCrashLoopBackOffMax": true},
    });
    let file = dir.join(format!("{name}.kubelet.yaml"));
    fs::write(&file, serde_yaml::to_string(&config)?).with_context(|| format!("writing {}", file.display()))?;
    Ok(vec![
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", dir.join(format!("{name}.kubeconfig")).display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", node.address()),
        // Device plugins have this path built in.
        "--root-dir=/var/lib/kubelet".into(),
    ])
}
