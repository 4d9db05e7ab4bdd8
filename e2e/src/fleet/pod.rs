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
    /// A gate that waits for a driver under a root, of a version where one is named, and with the container of the driver
    /// where one installs it.
    WaitDriver { root: String, version: Option<String>, container: bool },
    /// A gate that waits for the toolkit.
    WaitToolkit,
    /// The guard before a driver of this version.
    Guard { version: String },
    /// The driver of this version.
    Driver { version: String },
    /// An installer that puts a driver of this version under a root on the host, and loads it.
    InstallDriver { version: String, root: String },
    /// The toolkit's installer.
    InstallToolkit,
    /// A device plugin, ours or somebody else's.
    DevicePlugin(Sharing),
    /// Anything else: runs at once and, as an init container, ends at once.
    Other,
}

/// What a device plugin makes of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sharing {
    /// How many pods share one.
    pub replicas: u32,
    /// Whether shared ones are offered by a name of their own.
    pub renamed: bool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { replicas: 1, renamed: false }
    }
}

impl Sharing {
    /// What the file says that an init container writes for the plugin, NVIDIA's or Google's.
    fn of(file: &str) -> Option<Self> {
        let file: serde_json::Value = serde_json::from_str(file).ok()?;
        let number = |value: &serde_json::Value| value.as_u64().and_then(|number| u32::try_from(number).ok());
        if let Some(replicas) = number(&file["GPUSharingConfig"]["MaxSharedClientsPerGPU"]) {
            return Some(Self { replicas, renamed: false });
        }
        let shared = ["timeSlicing", "mps"].iter().find_map(|kind| file["sharing"].get(kind))?;
        let replicas = number(&shared["resources"][0]["replicas"])?;
        Some(Self { replicas, renamed: shared["renameByDefault"].as_bool().unwrap_or_default() })
    }
}

impl Program {
    /// Whether it is of an image that takes its time to be pulled and started.
    pub fn is_operand(&self) -> bool {
        matches!(self, Self::Driver { .. } | Self::InstallDriver { .. } | Self::InstallToolkit | Self::DevicePlugin(_))
    }

    fn of(container: &Container, stage: Option<&str>, sharing: Sharing) -> Self {
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
                    container: args.contains(&"--pid-file"),
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
            (Some(stage), "install-driver") if stage == Stage::Driver.as_str() => {
                let env = |name: &str| {
                    let variable = container.env.iter().flatten().find(|variable| variable.name == name);
                    variable.and_then(|variable| variable.value.clone())
                };
                let asked = option_with(&args, "--version=").filter(|version| version.contains('.'));
                let version = env("NVIDIA_DRIVER_VERSION").or(asked).unwrap_or_else(|| CHOSEN.to_owned());
                Self::InstallDriver { version, root: env("NVIDIA_INSTALL_DIR_HOST").unwrap_or_default() }
            }
            (Some(stage), "install-toolkit") if stage == Stage::Toolkit.as_str() => Self::InstallToolkit,
            (Some(stage), "device-plugin") if stage == Stage::DevicePlugin.as_str() => Self::DevicePlugin(sharing),
            (None, _) if FOREIGN_PLUGINS.iter().any(|name| image_name(container) == *name) => {
                Self::DevicePlugin(Sharing::default())
            }
            _ => Self::Other,
        }
    }
}

/// What an installer takes that is left the choice.
const CHOSEN: &str = "535.309.01";
/// Device plugins that others place: Google's and NVIDIA's, by the last part of their images' names.
const FOREIGN_PLUGINS: [&str; 2] = ["nvidia-gpu-device-plugin", "k8s-device-plugin"];

/// The value of an argument that is written in one with its name.
fn option_with(args: &[&str], name: &str) -> Option<String> {
    args.iter().find_map(|arg| arg.strip_prefix(name)).map(str::to_owned)
}

/// The last part of an image's name, without its tag.
fn image_name(container: &Container) -> &str {
    let last = container.image.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    last.split([':', '@']).next().unwrap_or_default()
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
        let written = |container: &Container| match container.args.as_deref() {
            Some([write, _, file]) if write == "write" => Sharing::of(file),
            _ => None,
        };
        let sharing = spec.init_containers.iter().flatten().find_map(written).unwrap_or_default();
        let containers = |containers: &[Container]| -> Vec<PlacedContainer> {
            let placed = |container: &Container| PlacedContainer {
                name: container.name.clone(),
                image: container.image.clone().unwrap_or_default(),
                program: Program::of(container, stage, sharing),
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
        assert_eq!(plugin.init[0].program, Program::WaitDriver { root: "/".into(), version: None, container: false });
        assert_eq!(plugin.main[0].program, Program::DevicePlugin(Sharing::default()));
    }

    #[test]
    fn what_a_plugin_makes_of_a_gpu_is_in_the_file_that_is_written_for_it() {
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
    fn an_installer_says_in_its_environment_or_arguments_what_it_puts_where() {
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
            (other, json!(["install", "--version=default"]), CHOSEN),
        ] {
            let program = Program::InstallDriver { version: wanted.into(), root: root.into() };
            assert_eq!(installer(version, args), program);
        }
    }
}
