//! A turn of a simulated node, without I/O and without a clock of its own: containers start, wait and end, drivers are loaded
//! and unloaded, the probe reports, and kubelet publishes. The host's state decides, as it does for the real programs.

use std::collections::BTreeMap;

use gpu_operator_crd::report::Report;
use k8s_openapi::{api::core::v1::PodStatus, jiff::Timestamp};

use super::{
    kubelet,
    machine::{Inputs, InstalledVersion, Machine},
    node::DriverBehaviour,
    pod::{PlacedContainer, Program, Run, Sharing},
    probe,
    published::Gpus,
};

/// The result of a turn: the state that the API must show.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// The status of each pod, by uid.
    pub statuses: BTreeMap<String, PodStatus>,
    /// The deleted pods that have ended.
    pub ended: Vec<String>,
    /// The GPUs that kubelet publishes; `None` if a plugin has never run.
    pub gpus: Option<Gpus>,
    /// Whether the detector has found a GPU.
    pub detected: bool,
    /// The probe's report; `None` if no probe reports.
    pub report: Option<Report>,
    /// When the state changes next by time alone.
    pub next: Option<Timestamp>,
}

impl Machine {
    /// Lets the node do everything that it can do now.
    pub fn turn(&mut self, inputs: &Inputs<'_>) -> Outcome {
        let mut outcome = Outcome::default();
        for pod in inputs.placed.iter().filter(|pod| pod.deleting) {
            outcome.ended.push(pod.uid.clone());
        }
        let gone = |uid: &String| inputs.staying().all(|pod| pod.uid != *uid);
        let ended: Vec<String> = self.pods.keys().filter(|uid| gone(uid)).cloned().collect();
        for uid in ended {
            self.end(&uid, inputs);
        }
        // A step of one container may let another one continue.
        while self.step(inputs) {}
        for pod in inputs.staying() {
            if let Some(state) = self.pods.get(&pod.uid) {
                outcome.statuses.insert(pod.uid.clone(), kubelet::pod_status(pod, state));
            }
        }
        outcome.gpus = self.published_gpus(inputs);
        let has_detector = self.runs(inputs, |program| *program == Program::Detector);
        outcome.detected = has_detector && !inputs.node.gpus.is_empty();
        outcome.report = self.has_probe(inputs).then(|| probe::report(self, inputs));
        outcome.next = self.next_start(inputs);
        outcome
    }

    /// Advances every container by one step, and returns whether any state has changed.
    fn step(&mut self, inputs: &Inputs<'_>) -> bool {
        let mut changed = false;
        for pod in inputs.staying() {
            let mut state = self.pods.remove(&pod.uid).unwrap_or_default();
            state.since.get_or_insert(inputs.now);
            state.is_driver = pod.main.iter().any(|container| matches!(container.program, Program::Driver { .. }));
            state.init.resize(pod.init.len(), Run::NotYet);
            state.main.resize(pod.main.len(), Run::NotYet);
            for (container, run) in pod.init.iter().zip(&mut state.init) {
                changed |= self.advance(container, run, true, inputs);
                if !run.is_done() {
                    break;
                }
            }
            if state.init.iter().all(Run::is_done) {
                for (container, run) in pod.main.iter().zip(&mut state.main) {
                    changed |= self.advance(container, run, false, inputs);
                }
            }
            self.pods.insert(pod.uid.clone(), state);
        }
        changed
    }

    fn advance(&mut self, container: &PlacedContainer, run: &mut Run, is_init: bool, inputs: &Inputs<'_>) -> bool {
        let next = match run.clone() {
            Run::NotYet => Run::Starting(inputs.now),
            Run::Starting(since) if inputs.now < inputs.started_at(&container.program, since) => return false,
            Run::Starting(_) | Run::NoImage | Run::Crashed(..) => self.start(&container.program, inputs, run),
            Run::Running(..) if is_init && self.is_finished(&container.program, inputs) => {
                self.toolkit |= container.program == Program::InstallToolkit;
                Run::Done(inputs.now)
            }
            Run::Running(..) => self.keep_running(&container.program, inputs, run),
            Run::Done(_) => return false,
        };
        let changed = *run != next;
        *run = next;
        changed
    }

    /// Returns the state of a container after an attempt to start it.
    fn start(&mut self, program: &Program, inputs: &Inputs<'_>, previous: &Run) -> Run {
        let (version, root) = match program {
            Program::Driver { version } => (version, None),
            Program::InstallDriver { version, root } => (version, Some(root)),
            Program::PullDriver { version } => {
                return match &inputs.node.behaviour.driver {
                    DriverBehaviour::ImageMissing => Run::NoImage,
                    DriverBehaviour::ImageMissingOf(missing) if missing == version => Run::NoImage,
                    _ => Run::Done(inputs.now),
                };
            }
            _ => return Run::Running(inputs.now, None),
        };
        let version = match &inputs.node.behaviour.driver {
            DriverBehaviour::ImageMissing => return Run::NoImage,
            DriverBehaviour::ImageMissingOf(missing) if missing == version => return Run::NoImage,
            DriverBehaviour::Crash(message) => return Run::crashed(message, inputs.now, previous),
            DriverBehaviour::Ok | DriverBehaviour::ImageMissingOf(_) => version,
            DriverBehaviour::Loads(other) => other,
        };
        match root {
            None => self.load(version, inputs, previous),
            Some(root) => self.install(version, root, inputs, previous),
        }
    }

    /// Runs an installer: it puts the driver on the host, and loads it.
    fn install(&mut self, version: &str, root: &str, inputs: &Inputs<'_>, previous: &Run) -> Run {
        if self.is_other_version_in_use(version, inputs) {
            return Run::crashed("driver is in use", inputs.now, previous);
        }
        self.module = Some(version.to_owned());
        self.installed = Some(InstalledVersion { root: root.to_owned(), version: version.to_owned() });
        Run::started(inputs.now, previous)
    }

    /// Returns the state of a running container, which may react to a change of the node's behaviour.
    fn keep_running(&mut self, program: &Program, inputs: &Inputs<'_>, previous: &Run) -> Run {
        let Program::Driver { version } = program else {
            return previous.clone();
        };
        let wanted = match &inputs.node.behaviour.driver {
            DriverBehaviour::Crash(message) => return Run::crashed(message, inputs.now, previous),
            DriverBehaviour::Loads(other) => other,
            DriverBehaviour::Ok | DriverBehaviour::ImageMissing | DriverBehaviour::ImageMissingOf(_) => version,
        };
        if self.module.as_ref() == Some(wanted) { previous.clone() } else { self.load(wanted, inputs, previous) }
    }

    /// Runs the driver's container: it loads the driver, and mounts its root.
    fn load(&mut self, version: &str, inputs: &Inputs<'_>, previous: &Run) -> Run {
        if self.is_other_version_in_use(version, inputs) {
            let message = "Could not unload NVIDIA driver kernel modules, driver is in use";
            return Run::crashed(message, inputs.now, previous);
        }
        self.module = Some(version.to_owned());
        self.container_root = Some(version.to_owned());
        self.state_file = true;
        if previous.is_running() { previous.clone() } else { Run::started(inputs.now, previous) }
    }

    fn is_other_version_in_use(&self, version: &str, inputs: &Inputs<'_>) -> bool {
        self.module.as_deref().is_some_and(|loaded| loaded != version) && self.in_use(inputs)
    }

    /// Returns whether an init container has finished its work.
    fn is_finished(&self, program: &Program, inputs: &Inputs<'_>) -> bool {
        match program {
            Program::WaitDriver { root, version, container } => {
                self.module.is_some()
                    && (!container || self.runs(inputs, |program| matches!(program, Program::Driver { .. })))
                    && version.as_ref().is_none_or(|version| self.module.as_ref() == Some(version))
                    && self.library(root, inputs.node) == self.module.as_deref()
            }
            Program::WaitToolkit => self.toolkit,
            Program::Guard { version } => {
                let installed_by_stack = self.state_file || self.installed.is_some();
                let is_own = match version.as_str() {
                    // For an installer that chooses the version itself, the version that it has installed is its own.
                    "" => self.installed.as_ref().map(|installed| &installed.version) == self.module.as_ref(),
                    version => self.module.as_deref() == Some(version) && installed_by_stack,
                };
                self.module.is_none() || is_own || !self.in_use(inputs)
            }
            _ => true,
        }
    }

    /// Ends a pod. A driver's container unloads the driver if it is not in use, and unmounts its root.
    fn end(&mut self, uid: &str, inputs: &Inputs<'_>) {
        let Some(state) = self.pods.remove(uid) else { return };
        if state.is_driver && state.is_running() {
            if !self.in_use(inputs) {
                self.module = None;
                self.state_file = false;
            }
            self.container_root = None;
        }
    }

    fn has_probe(&self, inputs: &Inputs<'_>) -> bool {
        inputs.node.behaviour.reports && self.runs(inputs, |program| *program == Program::Probe)
    }

    /// Returns the GPUs that kubelet publishes. A plugin that finds no driver offers none.
    fn published_gpus(&mut self, inputs: &Inputs<'_>) -> Option<Gpus> {
        let plugin = self.running(inputs).find_map(|program| match program {
            Program::DevicePlugin(sharing) => Some(*sharing),
            _ => None,
        });
        if let Some(Sharing { replicas, renamed }) = plugin.filter(|_| self.module.is_some()) {
            self.has_published = true;
            let on_bus = u32::try_from(inputs.node.gpus.len()).unwrap_or(u32::MAX);
            let count = inputs.node.behaviour.publishes.map_or(on_bus, |count| count.min(on_bus)) * replicas;
            return Some(Gpus { count, renamed });
        }
        self.has_published.then(Gpus::default)
    }
}

#[cfg(test)]
mod tests;
