//! Kubernetes distributions: how they are detected, and where their container runtimes keep their files.

use gpu_operator_crd::policy::Distribution;

use crate::{desired::container_runtime::Kind, world::NodeFacts};

/// The socket on which every runtime that supports NRI plugins listens for them.
pub const NRI_SOCKET: &str = "/var/run/nri/nri.sock";

/// Where a container runtime keeps its files, all on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// The main configuration; `None` if the drop-in is loaded without an entry there.
    pub config: Option<&'static str>,
    /// The file to which NVIDIA's runtime is added.
    pub drop_in: Option<&'static str>,
    /// The file from which the present configuration is read, if that is not the main one.
    pub source: Option<&'static str>,
    pub socket: &'static str,
}

/// Returns a node's distribution: the one in the policy, else detected by the node's label or the suffix of its
/// kubelet's version, else one whose runtime is packaged separately.
pub fn of(wanted: Option<Distribution>, node: &NodeFacts) -> Distribution {
    match wanted {
        Some(named) if named != Distribution::Auto => named,
        _ if node.labels.contains_key("microk8s.io/cluster") => Distribution::MicroK8s,
        _ => {
            let build = node.kubelet.split_once('+').map_or("", |(_, build)| build);
            let by_suffix = [("k3s", Distribution::K3s), ("rke2", Distribution::Rke2), ("k0s", Distribution::K0s)];
            let found = by_suffix.into_iter().find(|(suffix, _)| build.starts_with(suffix));
            found.map_or(Distribution::Kubeadm, |(_, distribution)| distribution)
        }
    }
}

/// Returns kubelet's root directory in a distribution that uses another one than `/var/lib/kubelet`. (That of
/// `MicroK8s` is unverified.)
pub fn kubelet_root(distribution: Distribution) -> Option<&'static str> {
    match distribution {
        Distribution::K0s => Some("/var/lib/k0s/kubelet"),
        Distribution::MicroK8s => Some("/var/snap/microk8s/common/var/lib/kubelet"),
        Distribution::Auto | Distribution::Kubeadm | Distribution::K3s | Distribution::Rke2 => None,
    }
}

/// Returns where a runtime keeps its files in a distribution; `first` is whether it is containerd 1. No distribution
/// includes Docker or CRI-O, so their files are where their packages put them.
pub fn files(kind: Kind, first: bool, distribution: Distribution) -> Files {
    match (kind, distribution) {
        (Kind::Docker, _) => Files {
            config: Some("/etc/docker/daemon.json"),
            drop_in: None,
            source: None,
            socket: "/var/run/docker.sock",
        },
        (Kind::CriO, _) => Files {
            config: Some("/etc/crio/crio.conf"),
            drop_in: Some("/etc/crio/crio.conf.d/99-nvidia.toml"),
            source: None,
            socket: "/var/run/crio/crio.sock",
        },
        (Kind::Containerd, Distribution::Auto | Distribution::Kubeadm) => Files {
            config: Some("/etc/containerd/config.toml"),
            drop_in: Some("/etc/containerd/conf.d/99-nvidia.toml"),
            source: None,
            socket: "/run/containerd/containerd.sock",
        },
        // k3s and RKE2 rewrite this file whenever they start, and add NVIDIA's runtime once it is installed. Since
        // k3s-io/k3s#13680 the file imports these folders, each for its own version of the configuration (unverified
        // for RKE2).
        (Kind::Containerd, Distribution::K3s) => Files {
            config: Some("/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
            drop_in: Some(if first {
                "/var/lib/rancher/k3s/agent/etc/containerd/config.toml.d/99-nvidia.toml"
            } else {
                "/var/lib/rancher/k3s/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml"
            }),
            source: None,
            socket: "/run/k3s/containerd/containerd.sock",
        },
        (Kind::Containerd, Distribution::Rke2) => Files {
            config: Some("/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
            drop_in: Some(if first {
                "/var/lib/rancher/rke2/agent/etc/containerd/config.toml.d/99-nvidia.toml"
            } else {
                "/var/lib/rancher/rke2/agent/etc/containerd/config-v3.toml.d/99-nvidia.toml"
            }),
            source: None,
            socket: "/run/k3s/containerd/containerd.sock",
        },
        // MicroK8s renders the configuration from the template whenever it starts; only the rendered file has no
        // placeholders.
        (Kind::Containerd, Distribution::MicroK8s) => Files {
            config: Some("/var/snap/microk8s/current/args/containerd-template.toml"),
            drop_in: Some("/etc/containerd/conf.d/99-nvidia.toml"),
            source: Some("/var/snap/microk8s/current/args/containerd.toml"),
            socket: "/var/snap/microk8s/common/run/containerd.sock",
        },
        // k0s loads every file of that folder, and owns its main file. Unverified.
        (Kind::Containerd, Distribution::K0s) => Files {
            config: None,
            drop_in: Some("/etc/k0s/containerd.d/nvidia.toml"),
            source: None,
            socket: "/run/k0s/containerd.sock",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_distribution_is_detected_by_policy_label_or_kubelet() {
        for (wanted, label, kubelet, expected) in [
            (None, None, "v1.34.1", Distribution::Kubeadm),
            (None, None, "v1.33.2-gke.100", Distribution::Kubeadm),
            (None, None, "v1.34.1+k3s1", Distribution::K3s),
            (None, None, "v1.34.1+rke2r2", Distribution::Rke2),
            (None, None, "v1.34.1+k0s", Distribution::K0s),
            (None, Some("microk8s.io/cluster"), "v1.34.1", Distribution::MicroK8s),
            (Some(Distribution::Auto), None, "v1.34.1+k3s1", Distribution::K3s),
            (Some(Distribution::K0s), None, "v1.34.1+k3s1", Distribution::K0s),
        ] {
            let mut node = NodeFacts { kubelet: kubelet.into(), ..NodeFacts::default() };
            node.labels.extend(label.map(|key| (key.into(), "true".into())));
            assert_eq!(of(wanted, &node), expected, "{wanted:?} {label:?} {kubelet}");
        }
    }
}
