//! The key of a variant, and its resolved stages.

use gpu_operator_crd::{
    PolicyName, PoolName,
    policy::{Operand, Stage},
    report::Report,
};
use serde::Serialize;

use crate::desired::{
    container_runtime::{Kind, Runtime},
    device_plugin::PluginChoice,
    driver::DriverChoice,
    toolkit::ToolkitChoice,
};

/// Everything on which a variant depends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VariantKey {
    pub policy: PolicyName,
    pub pool: PoolName,
    /// Whether it is a named pool, which may have the name of a model's implicit pool.
    pub named: bool,
    pub driver: DriverChoice,
    /// What is installed for the container runtime.
    pub toolkit: ToolkitChoice,
    /// The host's folder of the toolkit, if not the default.
    pub toolkit_folder: Option<String>,
    pub plugin: PluginChoice,
    pub host: HostTraits,
    /// If it is not the default and the plugin reads it.
    pub kubelet_root: Option<&'static str>,
    pub arch: String,
}

/// One resolved stage of a variant. All settings that are disruptive to change are part of the revision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageSpec {
    pub stage: Stage,
    pub image: String,
    /// Its resources are not part of the revision.
    #[serde(serialize_with = "without_resources")]
    pub operand: Operand,
}

fn without_resources<S: serde::Serializer>(operand: &Operand, serializer: S) -> Result<S::Ok, S::Error> {
    Operand { resources: None, ..operand.clone() }.serialize(serializer)
}

/// Systems with SELinux, by `ID` of os-release: for reports without that fact.
const SELINUX: [&str; 7] = ["rhel", "rhcos", "centos", "rocky", "almalinux", "ol", "fedora"];

/// Systems whose packages require a subscription of the host, by `ID`.
const SUBSCRIBED: [&str; 4] = ["rhel", "sles", "sled", "sl-micro"];

/// Properties of a host on which pods depend. Nodes that differ in one have separate DaemonSets of the stages of [`HostTraits::of_stage`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct HostTraits {
    /// Whether containers need `SELinux` options for the host's files.
    pub selinux: bool,
    /// Whether the host's subscription must be mounted into the driver's container. CRI-O mounts it by itself.
    pub subscription: bool,
}

impl HostTraits {
    pub fn of(report: &Report, runtime: &str, driver: &DriverChoice) -> Self {
        let system = report.os.id.as_str();
        let compiles = matches!(driver, DriverChoice::Container { .. });
        Self {
            selinux: report.selinux.unwrap_or_else(|| SELINUX.contains(&system)),
            subscription: compiles && SUBSCRIBED.contains(&system) && Runtime::of(runtime).kind != Some(Kind::CriO),
        }
    }

    /// Pods of every stage mount files of the host; only the driver's pods download packages.
    pub fn of_stage(self, stage: Stage) -> Self {
        Self { selinux: self.selinux, subscription: self.subscription && stage == Stage::Driver }
    }

    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

#[cfg(test)]
mod tests {
    use gpu_operator_crd::report::OsRelease;

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
        for (id, reported, runtime, driver, selinux, subscription) in [
            ("rhel", Some(true), "containerd://2.1.4", &container, true, true),
            ("rhel", Some(true), "docker://27.0.3", &container, true, true),
            ("rhel", Some(true), "cri-o://1.34.1", &container, true, false),
            ("rhel", Some(true), "containerd://2.1.4", &host, true, false),
            ("rhel", Some(false), "containerd://2.1.4", &container, false, true),
            ("rocky", Some(true), "containerd://2.1.4", &container, true, false),
            ("sles", Some(false), "containerd://2.1.4", &container, false, true),
            ("sl-micro", Some(true), "containerd://2.1.4", &container, true, true),
            ("sles", Some(false), "cri-o://1.34.1", &container, false, false),
            ("amzn", Some(true), "containerd://2.1.4", &host, true, false),
            ("ubuntu", Some(true), "containerd://2.1.4", &container, true, false),
            ("ubuntu", Some(false), "containerd://2.1.4", &container, false, false),
            ("", Some(true), "containerd://2.1.4", &host, true, false),
            // A probe that does not report it.
            ("rocky", None, "containerd://2.1.4", &host, true, false),
            ("bottlerocket", None, "containerd://2.1.4", &host, false, false),
            ("", None, "containerd://2.1.4", &host, false, false),
        ] {
            let os = OsRelease { id: id.into(), ..OsRelease::default() };
            let report = Report { os, selinux: reported, ..Report::default() };
            let expected = HostTraits { selinux, subscription };
            assert_eq!(HostTraits::of(&report, runtime, driver), expected, "{id} with {runtime}, {reported:?}");
        }
    }
}
