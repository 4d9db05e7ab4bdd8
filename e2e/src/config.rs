//! The configuration files of containerd and kubelet.

use std::{fs, path::Path};

use anyhow::{Context, Result};

use crate::{paths::Paths, state::NodeId};

/// The image of every pod's sandbox.
pub(crate) const PAUSE_IMAGE: &str = "localhost:5999/pause:e2e";

/// Writes what containerd reads at its place in the node: on a real node, too, NVIDIA's installer finds it there.
pub(crate) fn write_containerd(paths: &Paths, node: NodeId) -> Result<()> {
    let config = paths.node(node).join("upper/etc/containerd/config.toml");
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
            "bridge": "pods",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.19.0.0/16"}]]},
        }],
    });
    write(&paths.node(node).join("upper/etc/gpu-operator-e2e/cni/10-bridge.conflist"), &network.to_string())?;
    write(&config, &text)
}

/// Writes a kubelet's configuration and returns its arguments.
pub(crate) fn write_kubelet(paths: &Paths, node: NodeId) -> Result<Vec<String>> {
    let (name, dir) = (node.name(), paths.cluster());
    let pki = dir.join("pki");
    let config = serde_json::json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address(),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
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
    write(&file, &serde_yaml::to_string(&config)?)?;
    Ok(vec![
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", dir.join(format!("{name}.kubeconfig")).display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", node.address()),
        // Device plugins have this path built in.
        "--root-dir=/var/lib/kubelet".into(),
    ])
}

fn write(path: &Path, content: &str) -> Result<()> {
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::write(path, content).with_context(|| format!("writing {}", path.display()))
}
