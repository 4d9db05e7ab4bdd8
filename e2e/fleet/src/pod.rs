//! The parts of a pod that a simulated node reads.

use gpu_operator_crd::keys;
use k8s_openapi::api::core::v1::{Container, Pod};
use kube::ResourceExt;

use super::program::{Program, Sharing};

/// A pod on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlacedPod {
    pub uid: String,
    pub namespace: String,
    pub name: String,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it requests a GPU.
    pub uses_gpu: bool,
    pub init: Vec<PlacedContainer>,
    pub main: Vec<PlacedContainer>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlacedContainer {
    pub name: String,
    pub image: String,
    pub program: Program,
}

impl PlacedPod {
    /// Reads a pod; returns `None` if it has ended.
    pub fn of(pod: &Pod) -> Option<Self> {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        if matches!(phase, Some("Succeeded" | "Failed")) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let stage = pod.labels().get(keys::STAGE).map(String::as_str);
        let configured = |container: &Container| match container.args.as_deref() {
            Some([write, _, file]) if write == "write" => Sharing::parse(file),
            _ => None,
        };
        let sharing = spec.init_containers.iter().flatten().find_map(configured).unwrap_or_default();
        let containers = |containers: &[Container]| -> Vec<PlacedContainer> {
            let placed = |container: &Container| PlacedContainer {
                name: container.name.clone(),
                image: container.image.clone().unwrap_or_default(),
                program: Program::of(container, stage, sharing),
            };
            containers.iter().map(placed).collect()
        };
        let requests_gpu = |container: &Container| {
            let limits = container.resources.as_ref().and_then(|resources| resources.limits.as_ref());
            limits.is_some_and(|limits| limits.keys().any(|name| name.starts_with("nvidia.com/")))
        };
        Some(Self {
            uid: pod.uid()?,
            namespace: pod.namespace().unwrap_or_default(),
            name: pod.name_any(),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            uses_gpu: spec.containers.iter().any(requests_gpu),
            init: containers(spec.init_containers.as_deref().unwrap_or_default()),
            main: containers(&spec.containers),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::program::DEFAULT_VERSION;

    fn pod(stage: &str, init: &serde_json::Value, main: &serde_json::Value) -> PlacedPod {
        let pod = json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u", "labels": {keys::STAGE: stage}},
            "spec": {"initContainers": [init], "containers": [main]},
        });
        PlacedPod::of(&serde_json::from_value(pod).unwrap()).unwrap()
    }

    #[test]
    fn programs_are_recognized_by_image_and_arguments() {
        let probe = "localhost:5999/nvml-probe:dev";
        let guard = json!({"name": "guard", "image": probe, "args": ["guard", "--version", "1.2"]});
        let driver = json!({"name": "driver", "image": "localhost:5999/nvidia/driver:595.91.07-ubuntu22.04"});
        let driver = pod("driver", &guard, &driver);
        assert_eq!(driver.init[0].program, Program::Guard { version: "1.2".into() });
        assert_eq!(driver.main[0].program, Program::Driver { version: "595.91.07".into() });
        let gate = json!({"name": "g", "image": probe, "args": ["wait", "driver", "--driver-root", "/"]});
        let plugin = pod("device-plugin", &gate, &json!({"name": "device-plugin", "image": "x"}));
        assert_eq!(plugin.init[0].program, Program::WaitDriver { root: "/".into(), version: None, container: false });
        assert_eq!(plugin.main[0].program, Program::DevicePlugin(Sharing::default()));
    }

    #[test]
    fn sharing_is_read_from_the_plugins_configuration_file() {
        let image = "localhost:5999/nvml-probe:dev";
        let plugin = json!({"name": "device-plugin", "image": "x"});
        for (file, sharing) in [
            (r#"{"sharing": {"timeSlicing": {"renameByDefault": false, "resources": [{"replicas": 4}]}}}"#, (4, false)),
            (r#"{"sharing": {"mps": {"renameByDefault": true, "resources": [{"replicas": 2}]}}}"#, (2, true)),
            (r#"{"GPUSharingConfig": {"MaxSharedClientsPerGPU": 3}}"#, (3, false)),
        ] {
            let writer = json!({"name": "write-config", "image": image, "args": ["write", "/config/x", file]});
            let (replicas, renamed) = sharing;
            let wanted = Program::DevicePlugin(Sharing { replicas, renamed });
            assert_eq!(pod("device-plugin", &writer, &plugin).main[0].program, wanted, "{file}");
        }
    }

    #[test]
    fn an_installers_version_and_root_are_found() {
        let root = "/home/kubernetes/bin/nvidia";
        let installer = |version: serde_json::Value, args: serde_json::Value| {
            let env = json!([{"name": "NVIDIA_INSTALL_DIR_HOST", "value": root}, version]);
            let init = json!({"name": "install-driver", "image": "x", "env": env, "args": args});
            let hold = json!({"name": "driver", "image": "localhost:5999/nvml-probe:dev", "args": ["hold"]});
            pod("driver", &init, &hold).init[0].program.clone()
        };
        let other = json!({"name": "OTHER"});
        for (version, args, wanted) in [
            (json!({"name": "NVIDIA_DRIVER_VERSION", "value": "460.56"}), json!([]), "460.56"),
            (other.clone(), json!(["install", "--version=470.256.02"]), "470.256.02"),
            (other, json!(["install", "--version=default"]), DEFAULT_VERSION),
        ] {
            let program = Program::InstallDriver { version: wanted.into(), root: root.into() };
            assert_eq!(installer(version, args), program);
        }
    }
}
