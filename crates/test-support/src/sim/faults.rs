//! What is wrong with a node, and the programs that run on it.

use std::collections::BTreeSet;

use gpu_operator_crd::{policy::Stage, report::Holder};
use gpu_operator_plan::world::{Bystander, ContainerState};

/// The faults of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Driver images with these versions or tags cannot be pulled.
    pub missing_images: BTreeSet<String>,
    /// Why; defaults to `not found`.
    pub pull_error: Option<String>,
    /// The driver container crashes with this message.
    pub driver_crash: Option<String>,
    /// The pod of a stage after the driver's whose container crashes again and again.
    pub crashing: Option<Stage>,
    /// The driver container loads this version instead of the requested one.
    pub loads_instead: Option<String>,
    /// The toolkit's restart of the container runtime fails with this message.
    pub restart: Option<String>,
    /// The seconds that each operand pod takes to start, once its prerequisites are met.
    pub slow: i64,
    /// The API server rejects the pods of all stages with this message.
    pub pods_forbidden: Option<&'static str>,
    /// The API server fails to create the pods of all stages, with this message, such as that of a webhook that does not answer.
    pub pods_fail: Option<&'static str>,
    /// NVML fails with this error once it is opened.
    pub nvml_failure: Option<String>,
    /// The plugin runs, but kubelet publishes only this number of GPUs.
    pub publishes: Option<u32>,
    /// The node has no probe pod.
    pub no_probe: bool,
    /// The probe pod runs, but reports nothing, so that it is not ready after a minute.
    pub mute_probe: bool,
    /// Kubelet has not published the node's status since it was started.
    pub late_kubelet: bool,
    /// The outcome of validation tests on the node.
    pub test: Test,
    /// The outcome of applying a MIG layout to its GPUs.
    pub mig: MigOutcome,
}

/// A program that uses the driver of a node without a GPU pod.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// What the probe reports of it.
    pub holder: Holder,
    pub pod: Option<Bystander>,
}

impl Program {
    pub fn of_host(process: &str) -> Self {
        Self { holder: Holder { process: process.into(), pid: Some(4711), pod_uid: None }, pod: None }
    }

    /// Returns the process of a pod that requests no GPU.
    pub fn of_pod(process: &str, pod: Bystander) -> Self {
        Self {
            holder: Holder { process: process.into(), pid: None, pod_uid: Some("uid-of-the-pod".into()) },
            pod: Some(pod),
        }
    }

    /// Returns whether its DaemonSet removes it from a node whose label requests that.
    pub fn gives_way(&self) -> bool {
        matches!(self.pod, Some(Bystander::GivesWay(_)))
    }
}

/// The outcome of applying a MIG layout to a node's GPUs.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum MigOutcome {
    /// The layout is applied.
    #[default]
    Done,
    /// The layout fails with this message.
    Fails(String),
    /// The layout is applied once the probe has released the GPUs.
    WaitsForProbe,
}

/// The outcome of validation tests on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Test {
    #[default]
    Passes,
    /// The test fails with this message.
    Fails(String),
    /// The test does not complete.
    Hangs,
    /// Other pods use all GPUs, so the test cannot be scheduled.
    Unschedulable,
}

impl Faults {
    /// Returns whether an image cannot be pulled.
    pub fn lack(&self, image: &str) -> bool {
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        let version = tag.split('-').next().unwrap_or_default();
        self.missing_images.contains(tag) || self.missing_images.contains(version)
    }

    /// Returns the state of a container whose image cannot be pulled.
    pub fn lacks_its_image(&self) -> ContainerState {
        let message = self.pull_error.clone().unwrap_or_else(|| "not found".to_owned());
        ContainerState::Waiting { reason: "ImagePullBackOff".into(), message }
    }

    pub fn probe_reports(&self) -> bool {
        !self.no_probe && !self.mute_probe
    }
}
