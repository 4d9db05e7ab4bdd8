//! The parts of a pod that a simulated node reads.

use gpu_operator_crd::{keys, policy::Stage};
use k8s_openapi::{
    api::core::v1::{Container, Pod},
    jiff::Timestamp,
};
use kube::ResourceExt;

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

/// The state of a pod's containers, in the order of the pod's spec.
#[derive(Clone, Debug, Default)]
pub(super) struct PodState {
    /// When the node first saw the pod.
    pub since: Option<Timestamp>,
    /// Whether it is a driver's pod: its end removes the driver.
    pub is_driver: bool,
    pub restarts: i32,
    pub init: Vec<Run>,
    pub main: Vec<Run>,
}

/// The state of one container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Run {
    /// Earlier containers of the pod have not finished yet.
    #[default]
    NotYet,
    /// It has been pulled and started since then.
    Starting(Timestamp),
    /// Its image cannot be pulled.
    NoImage,
    /// It crashed, and is not started again before the cause is gone.
    Crashed(Crash),
    /// It has been running since then; with the crash of the previous run, if it crashed.
    Running(Timestamp, Option<Crash>),
    /// It exited with code 0 then.
    Done(Timestamp),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Crash {
    pub at: Timestamp,
    /// The last line of its log.
    pub message: String,
}

impl Run {
    /// Returns the state after a crash. A crash with the same message as the previous one is the same crash.
    pub fn crashed(message: &str, now: Timestamp, previous: &Self) -> Self {
        match previous {
            Self::Crashed(crash) if crash.message == message => previous.clone(),
            _ => Self::Crashed(Crash { at: now, message: message.to_owned() }),
        }
    }

    /// Returns the state after a start.
    pub fn started(now: Timestamp, previous: &Self) -> Self {
        match previous {
            Self::Crashed(crash) => Self::Running(now, Some(crash.clone())),
            _ => Self::Running(now, None),
        }
    }

    pub fn is_running(&self) -> bool {
        matches!(self, Self::Running(..))
    }

    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done(_))
    }
}

impl PodState {
    /// Returns whether any of its main containers is running.
    pub fn is_running(&self) -> bool {
        self.main.iter().any(Run::is_running)
    }
}

/// The folder to which the driver's container binds its root.
pub(super) const CONTAINER_ROOT: &str = "/run/nvidia/driver";

/// The program of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Detector,
    Probe,
    /// A gate that waits for a driver under a root; of `version`, if set; and with `container`, for the driver's container.
    WaitDriver {
        root: String,
        version: Option<String>,
        container: bool,
    },
    /// A gate that waits for the toolkit.
    WaitToolkit,
    /// The guard of a driver's container.
    Guard {
        version: String,
    },
    Driver {
        version: String,
    },
    /// An installer that puts a driver under a root on the host, and loads it.
    InstallDriver {
        version: String,
        root: String,
    },
    /// Nothing, in the image of a driver that is pulled before an update.
    PullDriver {
        version: String,
    },
    /// The toolkit's installer.
    InstallToolkit,
    /// A device plugin, the operator's or a third party's.
    DevicePlugin(Sharing),
    /// Any other program. It runs at once and, in an init container, exits at once.
    Other,
}

/// How a device plugin shares GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sharing {
    /// The number of pods that share a GPU.
    pub replicas: u32,
    /// Whether GPUs are offered under the name of shared GPUs.
    pub renamed: bool,
}

impl Default for Sharing {
    fn default() -> Self {
        Self { replicas: 1, renamed: false }
    }
}

impl Sharing {
    /// Parses the plugin's configuration file, NVIDIA's or Google's, which an init container writes.
    pub fn parse(file: &str) -> Option<Self> {
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
    /// Returns whether its image belongs to an operand, whose start may be slow.
    pub fn is_operand(&self) -> bool {
        matches!(self, Self::Driver { .. } | Self::InstallDriver { .. } | Self::InstallToolkit | Self::DevicePlugin(_))
    }

    /// Returns the program of a container in a pod of a stage. `sharing` is the configuration of its device plugin.
    pub fn of(container: &Container, stage: Option<&str>, sharing: Sharing) -> Self {
        let args: Vec<&str> = container.args.iter().flatten().map(String::as_str).collect();
        let option = |name: &str| {
            let at = args.iter().position(|arg| *arg == name)?;
            args.get(at + 1).map(|value| (*value).to_owned())
        };
        let is_probe_image = container.image.as_deref().is_some_and(|image| image.contains("/nvml-probe"));
        if is_probe_image {
            return match args.as_slice() {
                ["detect", ..] => Self::Detector,
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
            (Some(keys::PREFLIGHT), "driver-driver") => {
                Self::PullDriver { version: driver_version(container.image.as_deref().unwrap_or_default()) }
            }
            (Some(stage), "install-driver") if stage == Stage::Driver.as_str() => {
                let env = |name: &str| {
                    let variable = container.env.iter().flatten().find(|variable| variable.name == name);
                    variable.and_then(|variable| variable.value.clone())
                };
                let argument = argument_value(&args, "--version=").filter(|version| version.contains('.'));
                let version = env("NVIDIA_DRIVER_VERSION").or(argument).unwrap_or_else(|| DEFAULT_VERSION.to_owned());
                Self::InstallDriver { version, root: env("NVIDIA_INSTALL_DIR_HOST").unwrap_or_default() }
            }
            (Some(stage), "install-toolkit") if stage == Stage::Toolkit.as_str() => Self::InstallToolkit,
            (Some(stage), "device-plugin") if stage == Stage::DevicePlugin.as_str() => Self::DevicePlugin(sharing),
            (None, _) if THIRD_PARTY_PLUGINS.iter().any(|name| image_name(container) == *name) => {
                Self::DevicePlugin(Sharing::default())
            }
            _ => Self::Other,
        }
    }
}

/// The version that an installer chooses itself.
pub(super) const DEFAULT_VERSION: &str = "535.309.01";
/// Device plugins that third parties deploy, by the last part of their images' names: Google's and NVIDIA's.
const THIRD_PARTY_PLUGINS: [&str; 2] = ["nvidia-gpu-device-plugin", "k8s-device-plugin"];

/// Returns the value of an argument of the form `NAME=VALUE`; `name` includes the equals sign.
fn argument_value(args: &[&str], name: &str) -> Option<String> {
    args.iter().find_map(|arg| arg.strip_prefix(name)).map(str::to_owned)
}

/// Returns the last part of an image's name, without its tag.
fn image_name(container: &Container) -> &str {
    let last = container.image.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default();
    last.split([':', '@']).next().unwrap_or_default()
}

/// Returns the version in a driver's image, such as `595.91.07` for `…/driver:595.91.07-ubuntu22.04`.
fn driver_version(image: &str) -> String {
    let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
    tag.split('-').next().unwrap_or_default().to_owned()
}
