//! Container runtimes: how they support GPUs, and where Kubernetes distributions keep their files.

use std::fmt;

use gpu_operator_common::version::Version;
use gpu_operator_crd::{
    GpuNodeStatus,
    gpunode::StageRevisions,
    policy::Distribution,
    report::{LoadedRuntime, Report},
};
use serde::Serialize;

use crate::world::NodeFacts;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Kind {
    Containerd,
    /// Docker, behind cri-dockerd.
    Docker,
    CriO,
}

impl Kind {
    /// Returns the name that NVIDIA's installer and this operator's node agent use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Containerd => "containerd",
            Self::Docker => "docker",
            Self::CriO => "crio",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Containerd => "containerd",
            Self::Docker => "Docker",
            Self::CriO => "CRI-O",
        })
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub kind: Option<Kind>,
    version: Option<(u32, u32)>,
    /// Name and version, separated by a space.
    words: String,
}

impl Runtime {
    /// Parses a Node's `status.nodeInfo.containerRuntimeVersion`, such as `containerd://2.1.4`.
    pub fn of(version: &str) -> Self {
        let (kind, release) = version.split_once("://").unwrap_or((version, ""));
        let version = Version::leading(release).and_then(|version| Some((version.major(), version.minor()?)));
        let words = format!("{kind} {release}").trim().to_owned();
        let kind = match kind {
            "containerd" => Some(Kind::Containerd),
            "docker" => Some(Kind::Docker),
            "cri-o" => Some(Kind::CriO),
            _ => None,
        };
        Self { kind, version, words }
    }

    /// Whether its default configuration supports CDI devices. All supported releases of CRI-O do, and an unknown runtime is assumed to.
    pub fn takes_cdi(&self) -> bool {
        match self.kind {
            Some(Kind::Containerd) => !self.is_first_containerd(),
            Some(Kind::Docker) => false,
            Some(Kind::CriO) | None => true,
        }
    }

    /// Whether it supports CDI, enabled or disabled.
    pub fn has_cdi(&self) -> bool {
        self.takes_cdi() || self.kind == Some(Kind::Containerd) && self.is_at_least((1, 7))
    }

    /// Whether it is containerd 1, whose configuration has another version.
    pub fn is_first_containerd(&self) -> bool {
        self.kind == Some(Kind::Containerd) && !self.is_at_least((2, 0))
    }

    /// Whether it supports NRI plugins that add CDI devices. NRI is requested explicitly, so an unknown runtime is assumed not to.
    pub fn takes_nri(&self) -> bool {
        match self.kind {
            Some(Kind::Containerd) => self.is_at_least((2, 1)),
            Some(Kind::CriO) => self.is_at_least((1, 34)),
            Some(Kind::Docker) | None => false,
        }
    }

    fn is_at_least(&self, least: (u32, u32)) -> bool {
        self.version.is_none_or(|version| version >= least)
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.words.is_empty() { "an unknown one" } else { &self.words })
    }
}

/// Returns the configuration that kubelet's container runtime has loaded, if the runtime reports it.
pub fn loaded<'r>(node: &NodeFacts, report: Option<&'r Report>) -> Option<&'r LoadedRuntime> {
    let kind = Runtime::of(&node.runtime).kind?;
    let socket = runtime_files(kind, false, distribution_of(None, node)).socket;
    report?.loaded_runtimes.iter().find(|loaded| loaded.socket == socket)
}

/// Whether the host's configuration of containerd disables CDI, which is enabled by default and the toolkit can enable. Once this operator's toolkit has
/// enabled it, the runtime does not report that any more: the toolkit of the node and its last status prove it.
pub fn disables_cdi(
    node: &NodeFacts,
    have: &StageRevisions,
    report: Option<&Report>,
    status: Option<&GpuNodeStatus>,
) -> bool {
    let was_disabled = have.toolkit.is_some() && status.is_some_and(|status| status.cdi_disabled);
    let is_disabled = loaded(node, report).is_some_and(|loaded| loaded.cdi == Some(false));
    let runtime = Runtime::of(&node.runtime);
    runtime.takes_cdi() && runtime.kind != Some(Kind::CriO) && (was_disabled || is_disabled)
}

/// The socket for NRI plugins, the same for every runtime.
pub const NRI_SOCKET: &str = "/var/run/nri/nri.sock";

/// Paths of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Files {
    /// `None` if the drop-in is loaded without an entry in the main configuration.
    pub config: Option<&'static str>,
    /// The file to which NVIDIA's runtime is added.
    pub drop_in: Option<&'static str>,
    /// The file with the present configuration, if it is not the main one.
    pub source: Option<&'static str>,
    pub socket: &'static str,
}

impl Files {
    /// Returns the main file and the drop-in of a runtime that was started with another main file, beside which its drop-ins are.
    /// Distributions that generate the file from another one have files of their own.
    pub fn started_with(&self, file: Option<&str>) -> (Option<String>, Option<String>) {
        let owned = |path: Option<&str>| path.map(str::to_owned);
        let usual = self.config.filter(|_| self.source.is_none());
        let Some((file, usual)) = file.zip(usual) else { return (owned(self.config), owned(self.drop_in)) };
        let folder = |path: &str| path.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
        let beside = |drop_in: &str| match drop_in.strip_prefix(&folder(usual)) {
            Some(rest) => format!("{}{rest}", folder(file)),
            None => drop_in.to_owned(),
        };
        (Some(file.to_owned()), self.drop_in.map(beside))
    }
}

/// Returns the distribution in the policy, or else by the node's label or the suffix of its kubelet's version.
pub fn distribution_of(wanted: Option<Distribution>, node: &NodeFacts) -> Distribution {
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

/// Returns a root directory other than `/var/lib/kubelet`. (That of `MicroK8s` is unverified.)
pub fn kubelet_root(distribution: Distribution) -> Option<&'static str> {
    match distribution {
        Distribution::K0s => Some("/var/lib/k0s/kubelet"),
        Distribution::MicroK8s => Some("/var/snap/microk8s/common/var/lib/kubelet"),
        Distribution::Auto | Distribution::Kubeadm | Distribution::K3s | Distribution::Rke2 => None,
    }
}

/// `first` is whether it is containerd 1. No distribution includes Docker or CRI-O, so their files are where their packages put them.
pub fn runtime_files(kind: Kind, first: bool, distribution: Distribution) -> Files {
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
    fn an_unknown_version_is_assumed_to_be_recent() {
        for (version, cdi, nri) in [
            ("containerd://2.1.4-k3s1", true, true),
            ("containerd://v2.0.7", true, false),
            ("containerd://1.7.27", false, false),
            ("containerd://", true, true),
            ("cri-o://1.33.1", true, false),
            ("", true, false),
        ] {
            let runtime = Runtime::of(version);
            assert_eq!((runtime.takes_cdi(), runtime.takes_nri()), (cdi, nri), "{version}");
        }
    }

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
            assert_eq!(distribution_of(wanted, &node), expected, "{wanted:?} {label:?} {kubelet}");
        }
    }
}
