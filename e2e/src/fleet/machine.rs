//! What happens on one simulated node, without I/O and without a clock of its own: which containers run, what the driver
//! does, what the probe sees and kubelet publishes. The host's facts decide, as they do for the real programs.

use std::collections::BTreeMap;

use gpu_operator_crd::report::Report;
use k8s_openapi::{
    api::core::v1::PodStatus,
    jiff::{SignedDuration, Timestamp},
};

use super::{
    kubelet,
    node::{DriverBehaviour, FleetNode},
    pod::{PlacedContainer, PlacedPod, Program, Sharing},
    probe,
};

/// The folder into which the driver's container binds its root.
pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";

/// The state of a node's host and of the containers on it.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// How often it was booted anew.
    pub(super) boots: u32,
    /// Version of the loaded kernel module.
    pub(super) module: Option<String>,
    /// Version of the driver whose container has its root bound.
    pub(super) container_root: Option<String>,
    /// Version of the driver that an installer has put onto the host, and where; that outlasts a boot.
    pub(super) installed: Option<(String, String)>,
    /// A driver's container has left word that what is loaded is its own.
    pub(super) state_file: bool,
    /// The toolkit is installed; that outlasts a boot.
    toolkit: bool,
    /// Kubelet has published GPUs before.
    has_published: bool,
    pods: BTreeMap<String, PodState>,
}

/// A pod's containers, each in the place that it has in the pod.
#[derive(Clone, Debug, Default)]
pub struct PodState {
    /// When the node first saw it.
    pub(super) since: Option<Timestamp>,
    /// Whether it is a driver's: ending it takes the driver away.
    is_driver: bool,
    pub(super) restarts: i32,
    pub(super) init: Vec<Run>,
    pub(super) main: Vec<Run>,
}

/// Where a container is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Run {
    /// Its turn has not come.
    #[default]
    NotYet,
    /// Its turn came then; it is being pulled and started.
    Starting(Timestamp),
    /// Its image cannot be pulled.
    NoImage,
    /// It crashed, and is not tried again before the cause is gone.
    Crashed(Crash),
    /// Runs since then, and how the run before ended where that was badly.
    Running(Timestamp, Option<Crash>),
    /// Ended well then.
    Done(Timestamp),
}

/// How a container ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crash {
    pub at: Timestamp,
    /// Its last words.
    pub words: String,
}

/// What the API is to be told of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The status of each pod, by uid.
    pub statuses: BTreeMap<String, PodStatus>,
    /// Pods that have ended as they were asked to.
    pub ended: Vec<String>,
    /// GPUs that kubelet publishes; nothing where no plugin has ever run.
    pub gpus: Option<Gpus>,
    /// What the probe reports; nothing where there is no probe that does.
    pub report: Option<Report>,
    /// When something happens next by itself.
    pub next: Option<Timestamp>,
}

/// What kubelet publishes of a node's GPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpus {
    /// How many pods can have one.
    pub count: u32,
    /// Whether they are offered as shared ones, by a name of their own.
    pub renamed: bool,
}

impl Machine {
    /// A node that has just been switched on.
    pub fn new(node: &FleetNode) -> Self {
        Self { module: module_at_boot(node), ..Self::default() }
    }

    /// Switches the node off and on: what lay in memory is gone, and all containers start anew.
    pub fn reboot(&mut self, node: &FleetNode) {
        self.boots += 1;
        self.module = module_at_boot(node);
        self.container_root = None;
        self.state_file = false;
        for pod in self.pods.values_mut() {
            *pod = PodState { restarts: pod.restarts + 1, since: pod.since, ..PodState::default() };
        }
    }

    /// Lets the node do whatever it can do now, with these pods on it. `release` asks the probe to let go of the driver.
    pub fn turn(&mut self, node: &FleetNode, placed: &[PlacedPod], release: bool, now: Timestamp) -> Outcome {
        let mut outcome = Outcome::default();
        let host = Host { node, placed, release };
        for pod in placed.iter().filter(|pod| pod.deleting) {
            outcome.ended.push(pod.uid.clone());
        }
        let gone = |uid: &String| placed.iter().all(|pod| pod.deleting || pod.uid != *uid);
        let ended: Vec<String> = self.pods.keys().filter(|uid| gone(uid)).cloned().collect();
        for uid in ended {
            self.end(&uid, &host);
        }
        // What one container does opens another's gate.
        while self.step(&host, now) {}
        for pod in host.staying() {
            if let Some(state) = self.pods.get(&pod.uid) {
                outcome.statuses.insert(pod.uid.clone(), kubelet::pod_status(pod, state));
            }
        }
        outcome.gpus = self.published_gpus(&host);
        outcome.report = self.has_probe(&host).then(|| probe::report(self, &host));
        outcome.next = self.next(&host, now);
        outcome
    }

    /// One container after the other; whether any moved.
    fn step(&mut self, host: &Host<'_>, now: Timestamp) -> bool {
        let mut moved = false;
        for pod in host.staying() {
            let mut state = self.pods.remove(&pod.uid).unwrap_or_default();
            state.since.get_or_insert(now);
            state.is_driver = pod.has(|program| matches!(program, Program::Driver { .. }));
            state.init.resize(pod.init.len(), Run::NotYet);
            state.main.resize(pod.main.len(), Run::NotYet);
            for (container, run) in pod.init.iter().zip(&mut state.init) {
                moved |= self.advance(container, run, true, host, now);
                if !matches!(run, Run::Done(_)) {
                    break;
                }
            }
            if state.init.iter().all(|run| matches!(run, Run::Done(_))) {
                for (container, run) in pod.main.iter().zip(&mut state.main) {
                    moved |= self.advance(container, run, false, host, now);
                }
            }
            self.pods.insert(pod.uid.clone(), state);
        }
        moved
    }

    fn advance(
        &mut self,
        container: &PlacedContainer,
        run: &mut Run,
        init: bool,
        host: &Host<'_>,
        now: Timestamp,
    ) -> bool {
        let next = match run.clone() {
            Run::NotYet => Run::Starting(now),
            Run::Starting(since) if now < host.started_at(container, since) => return false,
            Run::Starting(_) | Run::NoImage | Run::Crashed(..) => self.start(container, host, now, run),
            Run::Running(..) if init && self.is_through(container, host) => {
                self.toolkit |= container.program == Program::InstallToolkit;
                Run::Done(now)
            }
            Run::Running(..) => self.keep(container, host, now, run),
            Run::Done(_) => return false,
        };
        let moved = *run != next;
        *run = next;
        moved
    }

    /// Starts a container, or says why it cannot.
    fn start(&mut self, container: &PlacedContainer, host: &Host<'_>, now: Timestamp, was: &Run) -> Run {
        let (version, root) = match &container.program {
            Program::Driver { version } => (version, None),
            Program::InstallDriver { version, root } => (version, Some(root)),
            _ => return Run::Running(now, None),
        };
        let version = match &host.node.behaviour.driver {
            DriverBehaviour::ImageMissing => return Run::NoImage,
            DriverBehaviour::Crash(words) => return crash(words, now, was),
            DriverBehaviour::Ok => version,
            DriverBehaviour::Loads(other) => other,
        };
        match root {
            None => self.load(version, host, now, was),
            Some(root) => self.install(version, root, host, now, was),
        }
    }

    /// What an installer does: the driver lies on the host from then on, and is loaded unless one is.
    fn install(&mut self, version: &str, root: &str, host: &Host<'_>, now: Timestamp, was: &Run) -> Run {
        let other = self.module.as_deref().is_some_and(|loaded| loaded != version);
        if other && self.in_use(host) {
            return crash("driver is in use", now, was);
        }
        self.module = Some(version.to_owned());
        self.installed = Some((root.to_owned(), version.to_owned()));
        match was {
            Run::Crashed(crash) => Run::Running(now, Some(crash.clone())),
            _ => Run::Running(now, None),
        }
    }

    /// What a running container does when the node's behaviour has changed.
    fn keep(&mut self, container: &PlacedContainer, host: &Host<'_>, now: Timestamp, was: &Run) -> Run {
        let Program::Driver { version } = &container.program else {
            return was.clone();
        };
        let wanted = match &host.node.behaviour.driver {
            DriverBehaviour::Crash(words) => return crash(words, now, was),
            DriverBehaviour::Loads(other) => other,
            DriverBehaviour::Ok | DriverBehaviour::ImageMissing => version,
        };
        if self.module.as_ref() == Some(wanted) { was.clone() } else { self.load(wanted, host, now, was) }
    }

    fn load(&mut self, version: &str, host: &Host<'_>, now: Timestamp, was: &Run) -> Run {
        let other = self.module.as_deref().is_some_and(|loaded| loaded != version);
        if other && self.in_use(host) {
            return crash("Could not unload NVIDIA driver kernel modules, driver is in use", now, was);
        }
        self.module = Some(version.to_owned());
        self.container_root = Some(version.to_owned());
        self.state_file = true;
        match was {
            Run::Running(..) => was.clone(),
            Run::Crashed(crash) => Run::Running(now, Some(crash.clone())),
            _ => Run::Running(now, None),
        }
    }

    /// Whether an init container has done what it is there for.
    fn is_through(&self, container: &PlacedContainer, host: &Host<'_>) -> bool {
        match &container.program {
            Program::WaitDriver { root, version, container } => {
                self.module.is_some()
                    && (!container || self.runs(host, |program| matches!(program, Program::Driver { .. })))
                    && version.as_ref().is_none_or(|version| self.module.as_ref() == Some(version))
                    && self.library(root, host.node) == self.module.as_deref()
            }
            Program::WaitToolkit => self.toolkit,
            Program::Guard { version } => {
                let ours = self.state_file || self.installed.is_some();
                let own = match version.as_str() {
                    // An installer that chooses the version: what it has installed is its own.
                    "" => self.installed.as_ref().map(|(_, version)| version) == self.module.as_ref(),
                    version => self.module.as_deref() == Some(version) && ours,
                };
                self.module.is_none() || own || !self.in_use(host)
            }
            _ => true,
        }
    }

    /// The version of the driver's libraries under a root.
    pub(super) fn library<'a>(&'a self, root: &str, node: &'a FleetNode) -> Option<&'a str> {
        if root == CONTAINER_ROOT {
            return self.container_root.as_deref();
        }
        if let Some((_, version)) = self.installed.as_ref().filter(|(folder, _)| folder == root) {
            return Some(version);
        }
        node.own_driver().map(|(version, _)| version).filter(|_| root == node.host_driver_root)
    }

    /// Ends a pod: a driver's container unloads what it loaded, if nothing holds it, and takes its root away.
    fn end(&mut self, uid: &str, host: &Host<'_>) {
        let Some(state) = self.pods.remove(uid) else { return };
        if state.is_driver && state.main.iter().any(|run| matches!(run, Run::Running(..))) {
            if !self.in_use(host) {
                self.module = None;
                self.state_file = false;
            }
            self.container_root = None;
        }
    }

    /// Whether anything holds the driver: the probe's NVML, the plugin's, or a pod with a GPU.
    pub(super) fn in_use(&self, host: &Host<'_>) -> bool {
        self.nvml_held(host)
            || self.runs(host, |program| matches!(program, Program::DevicePlugin(_)))
            || host.staying().any(|pod| pod.uses_gpu && self.is_running(pod))
    }

    /// Whether the probe has NVML open: the driver is loaded, its library is there, and nobody wants it back.
    pub(super) fn nvml_held(&self, host: &Host<'_>) -> bool {
        !host.release
            && self.runs(host, |program| *program == Program::Probe)
            && self.module.is_some()
            && self.roots(host.node).any(|root| self.library(root, host.node) == self.module.as_deref())
    }

    /// Where drivers may lie.
    pub(super) fn roots<'a>(&'a self, node: &'a FleetNode) -> impl Iterator<Item = &'a str> {
        let installed = self.installed.as_ref().map(|(root, _)| root.as_str());
        let own = node.host_driver_root.as_str();
        [own, CONTAINER_ROOT].into_iter().chain(installed.filter(move |root| *root != own))
    }

    fn has_probe(&self, host: &Host<'_>) -> bool {
        host.node.behaviour.reports && self.runs(host, |program| *program == Program::Probe)
    }

    /// GPUs by the name that the plugin offers them by. A plugin that finds no driver offers none.
    fn published_gpus(&mut self, host: &Host<'_>) -> Option<Gpus> {
        let plugin = self.running(host).find_map(|program| match program {
            Program::DevicePlugin(sharing) => Some(*sharing),
            _ => None,
        });
        if let Some(Sharing { replicas, renamed }) = plugin.filter(|_| self.module.is_some()) {
            self.has_published = true;
            let on_bus = u32::try_from(host.node.gpus.len()).unwrap_or(u32::MAX);
            let count = host.node.behaviour.publishes.map_or(on_bus, |count| count.min(on_bus)) * replicas;
            return Some(Gpus { count, renamed });
        }
        self.has_published.then(Gpus::default)
    }

    fn runs(&self, host: &Host<'_>, is: impl Fn(&Program) -> bool) -> bool {
        self.running(host).any(is)
    }

    /// The main programs of the pods that run.
    fn running<'h>(&self, host: &Host<'h>) -> impl Iterator<Item = &'h Program> {
        let pods = host.staying().filter(|pod| self.is_running(pod));
        pods.flat_map(|pod| &pod.main).map(|container| &container.program)
    }

    fn is_running(&self, pod: &PlacedPod) -> bool {
        let running = |state: &PodState| state.main.iter().any(|run| matches!(run, Run::Running(..)));
        self.pods.get(&pod.uid).is_some_and(running)
    }

    /// When the first container that is being started will have been.
    fn next(&self, host: &Host<'_>, now: Timestamp) -> Option<Timestamp> {
        let mut next: Option<Timestamp> = None;
        for pod in host.staying() {
            let Some(state) = self.pods.get(&pod.uid) else { continue };
            let containers = pod.init.iter().zip(&state.init).chain(pod.main.iter().zip(&state.main));
            for (container, run) in containers {
                if let Run::Starting(since) = run {
                    let at = host.started_at(container, *since);
                    next = Some(next.map_or(at, |next| next.min(at)).max(now));
                }
            }
        }
        next
    }
}

/// What a machine is told from outside.
pub(super) struct Host<'a> {
    pub node: &'a FleetNode,
    pub placed: &'a [PlacedPod],
    pub release: bool,
}

impl<'a> Host<'a> {
    fn staying(&self) -> impl Iterator<Item = &'a PlacedPod> + use<'a> {
        self.placed.iter().filter(|pod| !pod.deleting)
    }

    fn started_at(&self, container: &PlacedContainer, since: Timestamp) -> Timestamp {
        let seconds = if container.program.is_operand() { self.node.behaviour.pod_seconds } else { 0 };
        since + SignedDuration::from_secs(seconds.into())
    }
}

impl PlacedPod {
    fn has(&self, is: impl Fn(&Program) -> bool) -> bool {
        self.main.iter().any(|container| is(&container.program))
    }
}

fn module_at_boot(node: &FleetNode) -> Option<String> {
    node.own_driver().filter(|(_, loaded)| *loaded).map(|(version, _)| version.to_owned())
}

/// A crash for the same cause is the same crash.
fn crash(words: &str, now: Timestamp, was: &Run) -> Run {
    match was {
        Run::Crashed(before) if before.words == words => was.clone(),
        _ => Run::Crashed(Crash { at: now, words: words.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
