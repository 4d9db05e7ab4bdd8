//! What a simulated node reads of a pod that was placed on it: which programs its containers run.

use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use super::machine::CONTAINER_ROOT;

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// It is to end.
    pub deleting: bool,
    /// Whether it asks for a GPU.
    pub uses_gpu: bool,
    pub init: Vec<PlacedContainer>,
    pub main: Vec<PlacedContainer>,
}

/// A container of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlacedContainer {
    pub name: String,
    pub image: String,
    pub program: Program,
}

/// What a container runs, as far as a node behaves differently for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Program {
    /// The probe.
    Probe,
    /// A gate that waits for a driver under a root, of a version where one is named.
    WaitDriver { root: String, version: Option<String> },
    /// A gate that waits for the toolkit.
    WaitToolkit,
    /// The guard before a driver of this version.
    Guard { version: String },
    /// The driver of this version.
    Driver { version: String },
    /// The toolkit's installer.
    InstallToolkit,
    /// The device plugin.
    DevicePlugin,
    /// Anything else: runs at once and, as an init container, ends at once.
    Other,
}

impl Program {
    /// Whether it is of an image that takes its time to be pulled and started.
    pub fn is_operand(&self) -> bool {
        matches!(self, Self::Driver { .. } | Self::InstallToolkit | Self::DevicePlugin)
    }

    fn of(container: &Container, stage: Option<&str>) -> Self {
        let args: Vec<&str> = container.args.iter().flatten().map(String::as_str).collect();
        let option = |name: &str| {
            let at = args.iter().position(|arg| *arg == name)?;
            args.get(at + 1).map(|value| (*value).to_owned())
        };
        let is_probes = container.image.as_deref().is_some_and(|image| image.contains("/nvml-probe"));
        if is_probes {
            return match args.as_slice() {
                ["run", ..] => Self::Probe,
                ["wait", "driver", ..] => Self::WaitDriver {
                    root: option("--driver-root").unwrap_or_else(|| CONTAINER_ROOT.to_owned()),
                    version: option("--version"),
                },
                ["wait", "toolkit", ..] => Self::WaitToolkit,
                ["guard", ..] => Self::Guard { version: option("--version").unwrap_or_default() },
                _ => Self::Other,
            };
        }
        match (stage, container.name.as_str()) {
            (Some(stage), "driver") if stage == Stage::Driver.as_str() => {
                Self::Driver { version: driver_version(container.image.as_deref().unwrap_or_default()) }
            }
            (Some(stage), "install-toolkit") if stage == Stage::Toolkit.as_str() => Self::InstallToolkit,
            (Some(stage), _) if stage == Stage::DevicePlugin.as_str() => Self::DevicePlugin,
            _ => Self::Other,
        }
    }
}

/// `595.91.07` of `…/driver:595.91.07-ubuntu22.04`.
fn driver_version(image: &str) -> String {
    let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
    tag.split('-').next().unwrap_or_default().to_owned()
}

impl PlacedPod {
    /// What a node reads of a pod; nothing for one that has ended.
    pub fn of(pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let stage = pod.labels().get(keys::STAGE).map(String::as_str);
        let containers = |containers: &[Container]| -> Vec<PlacedContainer> {
            let placed = |container: &Container| PlacedContainer {
                name: container.name.clone(),
                image: container.image.clone().unwrap_or_default(),
                program: Program::of(container, stage),
            };
            containers.iter().map(placed).collect()
        };
        let asks_for_gpu = |container: &Container| {
            let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
            limits.is_some_and(|limits| limits.keys().any(|name| name.starts_with("nvidia.com/")))
        };
        Some(Self {
            uid: pod.uid()?,
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            uses_gpu: spec.containers.iter().any(asks_for_gpu),
            init: containers(spec.init_containers.as_deref().unwrap_or_default()),
            main: containers(&spec.containers),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(stage: &str, init: &serde_json::Value, main: &serde_json::Value) -> PlacedPod {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {keys::STAGE: stage}},
            "spec": {"initContainers": [init], "containers": [main]},
        });
        PlacedPod::of(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn programs_are_told_by_image_and_arguments() {
        let probes = "localhost:5999/nvml-probe:dev";
        let guard = json!({"name": "guard", "image": probes, "args": ["guard", "--version", "1.2"]});
        let driver = json!({"name": "driver", "image": "localhost:5999/nvidia/driver:595.91.07-ubuntu22.04"});
        let driver = pod("driver", &guard, &driver);
        assert_eq!(driver.init[0].program, Program::Guard { version: "1.2".into() });
        assert_eq!(driver.main[0].program, Program::Driver { version: "595.91.07".into() });
        let gate = json!({"name": "g", "image": probes, "args": ["wait", "driver", "--driver-root", "/"]});
        let plugin = pod("device-plugin", &gate, &json!({"name": "device-plugin", "image": "x"}));
        assert_eq!(plugin.init[0].program, Program::WaitDriver { root: "/".into(), version: None });
        assert_eq!(plugin.main[0].program, Program::DevicePlugin);
    }
}
