//! Properties of a node's host on which its pods depend, in addition to the driver and the container runtime's
//! configuration.

use gpu_operator_crd::{policy::Stage, report::OsRelease};
use serde::Serialize;

use crate::desired::{
    container_runtime::{Kind, Runtime},
    driver::choice::DriverChoice,
};

/// Systems that may enforce SELinux, by `ID` of their os-release. The options are not set on other systems: a container
/// runtime without SELinux ignores them, but one whose SELinux policy is not container-selinux's, such as
/// Bottlerocket's, does not know the type `spc_t` and would start no container. SELinux's state is not checked, because
/// an administrator may change it at any time without a new pod.
const SELINUX: [&str; 7] = ["rhel", "rhcos", "centos", "rocky", "almalinux", "ol", "fedora"];

/// Systems whose packages require a subscription of the host, by `ID` of their os-release.
const SUBSCRIBED: [&str; 4] = ["rhel", "sles", "sled", "sl-micro"];

/// Properties of a node's host on which its pods depend. Nodes that differ in a property have separate DaemonSets of
/// the stages that depend on it ([`HostTraits::of_stage`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct HostTraits {
    /// Whether containers need `SELinux` options to access the host's files.
    pub selinux: bool,
    /// Whether the host's subscription must be mounted into the driver's container. CRI-O mounts it into every
    /// container.
    pub subscription: bool,
}

impl HostTraits {
    /// Returns the traits of a host by its operating system, container runtime and driver.
    pub fn of(os: &OsRelease, runtime: &str, driver: &DriverChoice) -> Self {
        let compiles = matches!(driver, DriverChoice::Container { .. });
        Self {
            selinux: SELINUX.contains(&os.id.as_str()),
            subscription: compiles
                && SUBSCRIBED.contains(&os.id.as_str())
                && Runtime::of(runtime).kind != Some(Kind::CriO),
        }
    }

    /// Returns the traits that the pods of one stage depend on. Pods of every stage mount files of the host; only the
    /// driver's pods download packages.
    pub fn of_stage(self, stage: Stage) -> Self {
        Self { selinux: self.selinux, subscription: self.subscription && stage == Stage::Driver }
    }

    /// Returns whether no trait is set.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traits_follow_the_system_and_the_runtime() {
        let container = DriverChoice::Container {
            version: "580.173.02".into(),
            os: "rhel9".into(),
            open: true,
            kernel: None,
            parameters: None,
        };
        let host = DriverChoice::Preinstalled { root: "/".into() };
        for (id, runtime, driver, selinux, subscription) in [
            ("rhel", "containerd://2.1.4", &container, true, true),
            ("rhel", "docker://27.0.3", &container, true, true),
            ("rhel", "cri-o://1.34.1", &container, true, false),
            ("rhel", "containerd://2.1.4", &host, true, false),
            ("rocky", "containerd://2.1.4", &container, true, false),
            ("sles", "containerd://2.1.4", &container, false, true),
            ("sles", "cri-o://1.34.1", &container, false, false),
            ("ubuntu", "containerd://2.1.4", &container, false, false),
            ("bottlerocket", "containerd://2.1.4", &host, false, false),
            ("", "containerd://2.1.4", &host, false, false),
        ] {
            let os = OsRelease { id: id.into(), ..OsRelease::default() };
            let expected = HostTraits { selinux, subscription };
            assert_eq!(HostTraits::of(&os, runtime, driver), expected, "{id} with {runtime}");
        }
    }
}
