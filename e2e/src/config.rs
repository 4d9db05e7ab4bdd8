//! The configuration files of containerd and kubelet.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use crate::{
    paths::Paths,
    state::{NODE_NAME, State},
    tools::hex,
};

/// The image of every pod's sandbox.
pub(crate) const PAUSE_IMAGE: &str = "localhost:5999/pause:e2e";

/// What of ours lies outside the checkout, for as long as the node runs: a control group and a network bridge. Their
/// names tell the checkout, so that two of them do not meet.
pub(crate) struct Names {
    pub cgroup: String,
    pub bridge: String,
}

impl Names {
    pub(crate) fn new(paths: &Paths) -> Self {
        let hash = hex(&Sha256::digest(paths.root.as_os_str().as_encoded_bytes()));
        // The kernel takes 15 characters for a device.
        Self { cgroup: format!("gpu-operator-e2e-{}", &hash[..8]), bridge: format!("gpue2e{}", &hash[..8]) }
    }
}

/// Writes what containerd reads at its place in the node: on a real node, too, NVIDIA's installer finds it there.
pub(crate) fn write_containerd(paths: &Paths) -> Result<()> {
    let config = paths.node().join("upper/etc/containerd/config.toml");
    if config.exists() {
        // A reboot: what was installed into the configuration stays, as on a real node.
        return Ok(());
    }
    let bin = paths.bin();
    let text = format!(
        r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "/run/containerd/containerd.sock"

[plugins.'io.containerd.cri.v1.images']
  snapshotter = "overlayfs"

  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.runtime']
  enable_cdi = true
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  # A machine that may not lower its own OOM score, such as a container, could start nothing.
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/usr/lib/cni"]
    conf_dir = "/etc/gpu-operator-e2e/cni"

  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{}"
        SystemdCgroup = false
"#,
        bin.join("runc").display()
    );
    // No gateway: pods need an address of their own but nothing to talk to, and the machine stays out of their network.
    let network = serde_json::json!({
        "cniVersion": "1.0.0",
        "name": "gpu-operator-e2e",
        "plugins": [{
            "type": "bridge",
            "bridge": Names::new(paths).bridge,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.19.0.0/16"}]]},
        }],
    });
    write(&paths.node().join("upper/etc/gpu-operator-e2e/cni/10-bridge.conflist"), &network.to_string())?;
    write(&config, &text)
}

/// Writes kubelet's configuration and returns its arguments.
pub(crate) fn write_kubelet(paths: &Paths, state: &State) -> Result<Vec<String>> {
    let dir = paths.cluster();
    let pki = dir.join("pki");
    let config = serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": state.kubelet_port,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": state.kubelet_health_port,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": false},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "tlsCertFile": pki.join("kubelet-serving.crt"),
        "tlsPrivateKeyFile": pki.join("kubelet-serving.key"),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", Names::new(paths).cgroup),
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
    let file = dir.join("kubelet.yaml");
    write(&file, &serde_yaml::to_string(&config)?)?;
    Ok(vec![
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", dir.join("kubelet.kubeconfig").display()),
        format!("--hostname-override={NODE_NAME}"),
        // Device plugins have this path built in.
        "--root-dir=/var/lib/kubelet".into(),
        // kubelet refuses 127.0.0.1 for its node, so the address is given from outside, as a cloud would.
        "--cloud-provider=external".into(),
    ])
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}
