//! Container runtimes: how a node's runtime supports GPUs without being configured.

use std::fmt;

use gpu_operator_common::version::Version;
use serde::Serialize;

/// A container runtime that can be configured.
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

/// A node's container runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// Its kind, if known.
    pub kind: Option<Kind>,
    /// Major and minor version, if they can be parsed.
    version: Option<(u32, u32)>,
    /// Name and version as Kubernetes reports them, separated by a space.
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

    /// Returns whether it supports CDI devices without being configured. CRI-O does in every release that a supported
    /// Kubernetes runs with, and an unknown runtime is assumed to.
    pub fn takes_cdi(&self) -> bool {
        match self.kind {
            Some(Kind::Containerd) => !self.is_first_containerd(),
            Some(Kind::Docker) => false,
            Some(Kind::CriO) | None => true,
        }
    }

    /// Returns whether it supports CDI, enabled or disabled.
    pub fn has_cdi(&self) -> bool {
        self.takes_cdi() || self.kind == Some(Kind::Containerd) && self.is_at_least((1, 7))
    }

    /// Returns whether it is containerd 1, whose configuration has another version than containerd 2's.
    pub fn is_first_containerd(&self) -> bool {
        self.kind == Some(Kind::Containerd) && !self.is_at_least((2, 0))
    }

    /// Returns whether it supports NRI plugins that add CDI devices. NRI is requested explicitly, so an unknown runtime
    /// is assumed not to.
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
}
