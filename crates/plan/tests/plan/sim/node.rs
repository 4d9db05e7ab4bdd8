//! The rest of a node's surroundings: the DaemonSet controller, kubelet, and what runs in the pods.

use gpu_operator_crd::{
    health::HealthState,
    keys,
    policy::Stage,
    report::{InstalledDriver, MigAttributes, MigDevices, NvmlState, Report},
};
use gpu_operator_plan::world::{
    ContainerFacts, ContainerState, Exit, ForeignPart, ForeignSet, Interned, PodEnd, PodFacts, Refusal, Resources, Role,
};
use k8s_openapi::{
    api::core::v1::{Container, PodSpec},
    jiff::Timestamp,
};
use kube::ResourceExt;

use super::{
    Faults, Sim,
    machine::{CONTAINER_ROOT, Division, Test},
    plugin::{layout, offered, published, replicas, waits_for},
};

impl Sim {
    /// One turn of DaemonSet controller, kubelets and probes. Whether anything changed.
    pub fn surroundings(&mut self) -> bool {
        // A rejection is repeated indefinitely, which is no change by itself.
        let facts = |sim: &Self| {
            let pods = (sim.pods.clone(), sim.refusals.len());
            (sim.nodes.clone(), sim.gpu_nodes.clone(), sim.machines.clone(), pods)
        };
        let before = facts(self);
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in &names {
            if self.nodes[name].ready {
                self.place_probe(name);
                self.place_pods(name);
                self.run_node(name);
                self.tell(name);
            }
        }
        self.templates.retain(|name, _| self.pods.contains_key(name));
        before != facts(self)
    }

    fn faults_of(&self, node: &str) -> Faults {
        self.faults.get(node).cloned().unwrap_or_default()
    }

    /// The probe's pod comes with the chart.
    fn place_probe(&mut self, node: &str) {
        let name = format!("nvml-probe@{node}");
        if self.faults_of(node).no_probe {
            self.pods.remove(&name);
        } else if !self.pods.contains_key(&name) {
            let mut pod = new_pod(&name, node, Role::Probe, self.now);
            run(&mut pod, self.now);
            self.pods.insert(name, pod);
        }
    }

    /// Pods as the node's labels and the DaemonSets there are call for.
    fn place_pods(&mut self, node: &str) {
        for stage in Stage::ALL {
            let group = self.nodes[node].labels.get(stage.key()).filter(|group| !group.is_empty()).cloned();
            let set = group.as_ref().map(|group| format!("{}-{group}", stage.as_str()));
            let set = set.filter(|set| self.sets.contains_key(set));
            let name = format!("{}@{node}", stage.as_str());
            let present = self.pods.get(&name).and_then(|pod| pod.group.clone());
            if present.is_some() && (present != group || set.is_none()) {
                self.pods.remove(&name);
                continue; // The new one comes when the old one is gone.
            }
            let Some(set) = set.filter(|set| self.tolerates(set, node)) else { continue };
            if let Some(words) = self.faults_of(node).pods_forbidden {
                let message = format!("pods is forbidden: {words}");
                self.refusals.insert(set, Refusal { message, at: Some(self.now) });
            } else if !self.pods.contains_key(&name) {
                let applied = self.sets[&set].annotations().get(keys::APPLIED).map(Interned::from);
                let pod = PodFacts { group, applied, ..new_pod(&name, node, Role::Operand(stage), self.now) };
                self.templates.insert(name.clone(), self.template(&set).clone());
                self.pods.insert(name, pod);
            }
        }
    }

    fn template(&self, set: &str) -> &PodSpec {
        self.sets[set].spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod's spec")
    }

    /// Whether a node's label calls for a toolkit that restarts the container runtime.
    pub fn restarts_runtime(&self, node: &str) -> bool {
        let group = self.nodes[node].labels.get(keys::TOOLKIT);
        let set = group.map(|group| format!("{}-{group}", Stage::Toolkit.as_str()));
        set.filter(|set| self.sets.contains_key(set)).is_some_and(|set| restarts_runtime(self.template(&set)))
    }

    /// How many pods share a GPU of a node, by the plugin that its label names.
    pub fn replicas(&self, node: &str) -> u32 {
        let group = self.nodes[node].labels.get(keys::DEVICE_PLUGIN);
        let set = group.map(|group| format!("{}-{group}", Stage::DevicePlugin.as_str()));
        set.filter(|set| self.sets.contains_key(set)).map_or(1, |set| replicas(self.template(&set)))
    }

    /// Returns whether a node's label names an existing DaemonSet of a device plugin.
    pub fn has_plugin(&self, node: &str) -> bool {
        let group = self.nodes[node].labels.get(keys::DEVICE_PLUGIN);
        group.is_some_and(|group| self.sets.contains_key(&format!("{}-{group}", Stage::DevicePlugin.as_str())))
    }

    /// Whether the DaemonSet controller makes pods of a set for a node with its taints.
    fn tolerates(&self, set: &str, node: &str) -> bool {
        let tolerations = self.template(set).tolerations.clone().unwrap_or_default();
        let mut taints = self.nodes[node].taints.iter();
        taints.all(|taint| tolerations.iter().any(|toleration| taint.tolerated_by(toleration)))
    }

    fn run_node(&mut self, node: &str) {
        let Some(machine) = self.machines.get(node) else { return };
        let on_bus = u32::try_from(machine.gpus.len()).expect("few GPUs");
        let faults = self.faults_of(node);
        self.hold_or_release(node, &faults);
        self.run_driver(node, &faults);
        let [toolkit, mps, plugin] =
            [Stage::Toolkit, Stage::Mps, Stage::DevicePlugin].map(|stage| format!("{}@{node}", stage.as_str()));
        if self.fails_to_restart(&toolkit, &faults) {
            self.silence(node, &faults);
        } else {
            self.run_behind_gate(&toolkit, node, &faults);
        }
        self.run_behind_gate(&mps, node, &faults);
        let runs = |sim: &Self, pod: &str| sim.pods.get(pod).is_some_and(PodFacts::running);
        let template = self.templates.get(&plugin);
        let waits_for = |stage| template.is_some_and(|template| waits_for(template, stage));
        let before = (runs(self, &toolkit) || !waits_for("toolkit")) && (runs(self, &mps) || !waits_for("mps"));
        if before && self.divide(&plugin, node, &faults) {
            self.run_behind_gate(&plugin, node, &faults);
        }
        self.run_tests(node, &faults);
        let seen = faults.publishes.unwrap_or(on_bus);
        let of_ours = self.templates.get(&plugin).filter(|_| runs(self, &plugin));
        let offered = of_ours.map(|template| offered(template, &self.machines[node], seen));
        let third_party =
            || self.foreign_plugin_serves(node).then(|| Resources::from_iter([(self.foreign_resource.as_str(), seen)]));
        let offered = offered.or_else(third_party);
        let facts = self.nodes.get_mut(node).expect("a node");
        // Kubelet keeps the names of what is gone, with nothing to them.
        let gone = facts.allocatable.withdrawn();
        facts.allocatable = match offered {
            None => gone,
            Some(offered) => published(&merged(&gone, &offered)),
        };
    }

    /// Returns whether a third-party device plugin has a pod on a node, and a driver to work with.
    fn foreign_plugin_serves(&self, node: &str) -> bool {
        let plugin = ForeignPart::Stage(Stage::DevicePlugin);
        let sets = self.foreign_sets.values().filter_map(ForeignSet::of).filter(|set| set.part == plugin);
        self.machines[node].driver.loaded.is_some() && sets.into_iter().any(|set| set.reaches(&self.nodes[node]))
    }

    /// The probe holds NVML while a driver works, and releases it when asked.
    fn hold_or_release(&mut self, node: &str, faults: &Faults) {
        let release = self.gpu_nodes.get(node).is_some_and(|gpu_node| gpu_node.spec.release_driver);
        let used = self.gpu_pods.get(node).is_some_and(|pods| !pods.is_empty());
        let report = self.report(node);
        report.nvml.state = match (&report.driver.loaded, release || !faults.tells()) {
            (_, true) => NvmlState::Released,
            (Some(_), false) => NvmlState::Answering,
            (None, false) => NvmlState::Absent,
        };
        report.driver.in_use = report.driver.loaded.is_some() && (used || report.nvml.state == NvmlState::Answering);
        tell_of_gpus(report);
        // A GPU that answers is healthy by default.
        let answering = report.nvml.state == NvmlState::Answering;
        for gpu in report.gpus.iter_mut().filter(|gpu| answering && gpu.health.state == HealthState::Unknown) {
            gpu.health.state = HealthState::Healthy;
        }
    }

    /// The version of a driver pod: from its installer's environment or arguments, else from the image's tag.
    pub fn driver_version(&self, node: &str) -> Option<String> {
        let template = self.templates.get(&format!("driver@{node}"))?;
        if let Some(installer) = installer(template) {
            let args = installer.args.iter().flatten().find_map(|arg| arg.strip_prefix("--version="));
            let told = told(installer, "NVIDIA_DRIVER_VERSION").or(args);
            return Some(told.filter(|word| word.contains('.')).unwrap_or(INSTALLERS_CHOICE).to_owned());
        }
        let image = template.containers.first()?.image.clone()?;
        let tag = image.rsplit_once(':')?.1;
        let version = tag.split('-').next()?;
        // A precompiled image only names its branch.
        Some(if version.contains('.') { version.to_owned() } else { format!("{version}.1.1") })
    }

    /// The folder that a driver pod puts its driver into.
    fn driver_root(&self, node: &str) -> String {
        let installer = self.templates.get(&format!("driver@{node}")).and_then(installer);
        let root = installer.and_then(|installer| told(installer, "NVIDIA_INSTALL_DIR_HOST"));
        root.unwrap_or(CONTAINER_ROOT).to_owned()
    }

    /// The tag of a driver pod's image.
    fn driver_tag(&self, node: &str) -> String {
        let image = self.templates.get(&format!("driver@{node}")).and_then(|pod| pod.containers[0].image.clone());
        image.and_then(|image| Some(image.rsplit_once(':')?.1.to_owned())).unwrap_or_default()
    }

    fn run_driver(&mut self, node: &str, faults: &Faults) {
        let version = self.driver_version(node);
        let root = self.driver_root(node);
        let missing = faults.missing_images.contains(&self.driver_tag(node));
        let now = self.now;
        let Some(pod) = self.pods.get_mut(&format!("driver@{node}")) else { return };
        let container = &mut pod.containers[0];
        let runs = matches!(container.state, ContainerState::Running(_));
        let Some(version) = version.filter(|version| runs || !missing && !faults.missing_images.contains(version))
        else {
            container.state =
                ContainerState::Waiting { reason: "ImagePullBackOff".into(), message: "not found".into() };
            container.ready = false;
            return;
        };
        if let Some(words) = &faults.driver_crash {
            let exit = Exit { code: 1, message: words.clone() };
            container.state = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
            container.last_failure = Some(exit);
            container.ready = false;
            return;
        }
        container.last_failure = None;
        if !runs && takes_its_time(pod, now, faults) {
            return;
        }
        let used = self.gpu_pods.get(node).is_some_and(|pods| !pods.is_empty());
        let machine = &self.machines[node];
        let loaded = machine.driver.loaded.as_ref();
        let same = loaded == Some(&version);
        let held = loaded.is_some() && !same && (used || machine.nvml.state == NvmlState::Answering);
        if held && !runs {
            wait_at_guard(pod, now);
            return;
        }
        pod.init.clear();
        let template = &self.templates[&format!("driver@{node}")];
        if template.init_containers.iter().flatten().any(|init| init.name == SIDECAR) {
            let state = ContainerState::Running(None);
            pod.init = vec![ContainerFacts { name: SIDECAR.into(), state, last_failure: None, ready: true }];
        }
        run(pod, now);
        let machine = self.report(node);
        // It loads when it starts; having loaded the wrong one, it tries again once the cause is gone.
        let wrong = machine.driver.loaded.as_ref() != Some(&version);
        let loads = faults.loads_instead.clone().unwrap_or(version);
        let installed = machine.driver.installed.iter().any(|found| found.root == root && found.version == loads);
        let done = installed && machine.driver.loaded.as_ref() == Some(&loads);
        if !done && (!runs || wrong) {
            // A driver moves only when nothing holds it: the container does not unload a driver that is in use.
            if machine.driver.loaded.is_some() && (used || machine.nvml.state == NvmlState::Answering) {
                return;
            }
            machine.driver.loaded = Some(loads.clone());
            machine.driver.installed.retain(|installed| installed.root != root);
            machine.driver.container_ran |= root == CONTAINER_ROOT;
            machine.driver.installed.push(InstalledDriver { root, version: loads, ..InstalledDriver::default() });
        }
    }

    /// A test is placed where a GPU is free, runs, and has ended a moment later.
    fn run_tests(&mut self, node: &str, faults: &Faults) {
        let now = self.now;
        let there = &self.nodes[node].allocatable;
        let free = there.names().any(|name| there.amount(name) > 0) && faults.test != Test::FindsNoPlace;
        let tests = self.pods.values_mut().filter(|pod| pod.role == Role::Validation && pod.node == node);
        for pod in tests.filter(|pod| pod.end.is_none()) {
            if pod.containers.is_empty() && !free {
                pod.unschedulable = Some("0/1 nodes are available: 1 Insufficient nvidia.com/gpu.".into());
            } else if pod.containers.is_empty() {
                pod.unschedulable = None;
                pod.containers = new_pod(&pod.name, node, pod.role, now).containers;
                run(pod, now);
            } else if let Test::Fails(words) = &faults.test {
                end_test(pod, Some(Exit { code: 1, message: words.clone() }));
            } else if faults.test != Test::Hangs {
                end_test(pod, None);
            }
        }
    }

    /// The GPUs are divided before their plugin begins, unless something stands in the way.
    fn divide(&mut self, plugin: &str, node: &str, faults: &Faults) -> bool {
        let runs = self.driver_runs(node);
        let template = self.templates.get(plugin).filter(|template| gate_opens(template, &self.machines[node], runs));
        let wanted = template.and_then(layout);
        let Some(pod) = self.pods.get_mut(plugin).filter(|pod| !pod.running()) else { return true };
        let Some(wanted) = wanted else { return true };
        let answering = self.machines[node].nvml.state == NvmlState::Answering;
        let devices: Vec<MigDevices> = wanted
            .into_iter()
            .map(|(profile, count)| MigDevices { profile, count, attributes: Some(MigAttributes::default()) })
            .collect();
        let devices = (!devices.is_empty()).then_some(devices);
        let changes = self.machines[node].gpus.iter().any(|gpu| gpu.mig_devices != devices);
        let used = changes && self.gpu_pods.get(node).is_some_and(|pods| !pods.is_empty());
        let words = match &faults.division {
            _ if used => Some("MigBlocked: in use by a pod".into()),
            Division::Fails(words) => Some(words.clone()),
            Division::WaitsForProbe if answering => Some("MigBlocked: in use; a program has it open".into()),
            Division::WaitsForProbe | Division::Done => None,
        };
        let done = ContainerState::Ended(Exit { code: 0, message: "Completed".into() });
        let waits = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
        let state = if words.is_some() { waits } else { done };
        let last_failure = words.map(|message| Exit { code: 1, message });
        let failed = last_failure.is_some();
        pod.init = vec![ContainerFacts { name: "divide-gpus".into(), state, last_failure, ready: !failed }];
        if failed {
            return false;
        }
        for gpu in &mut self.report(node).gpus {
            gpu.mig_devices.clone_from(&devices);
        }
        true
    }

    /// Whether the container runtime does not come back when its toolkit restarts it.
    fn fails_to_restart(&mut self, toolkit: &str, faults: &Faults) -> bool {
        let restarts = self.templates.get(toolkit).is_some_and(restarts_runtime);
        let first = |pod: &&mut PodFacts| matches!(pod.containers[0].state, ContainerState::Waiting { .. });
        let Some(pod) = self.pods.get_mut(toolkit).filter(|_| restarts).filter(first) else { return false };
        pod.init.clear();
        let Some(message) = faults.restart.clone() else {
            let node = pod.node.to_string();
            if let Some((facts, runtime)) = self.nodes.get_mut(&node).zip(self.silent.remove(&node)) {
                facts.runtime = runtime;
            }
            return false;
        };
        let state = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
        let last_failure = Some(Exit { code: 1, message });
        pod.init = vec![ContainerFacts { name: RESTART.into(), state, last_failure, ready: false }];
        true
    }

    /// Kubelet asks in vain for the version of a runtime that is down.
    fn silence(&mut self, node: &str, faults: &Faults) {
        let down = faults.restart.as_ref().is_some_and(|words| words.starts_with("RuntimeDown"));
        let facts = self.nodes.get_mut(node).expect("a node");
        if down && !facts.runtime_is_silent() {
            self.silent.insert(node.into(), std::mem::replace(&mut facts.runtime, "containerd://Unknown".into()));
        }
    }

    /// Returns whether the driver container runs, which gates detect by its lock.
    fn driver_runs(&self, node: &str) -> bool {
        self.pods.get(&format!("driver@{node}")).is_some_and(PodFacts::has_started)
    }

    fn run_behind_gate(&mut self, pod: &str, node: &str, faults: &Faults) {
        let (now, templates, machine) = (self.now, &self.templates, &self.machines[node]);
        let runs = self.driver_runs(node);
        let open = templates.get(pod).is_some_and(|template| gate_opens(template, machine, runs));
        let Some(pod) = self.pods.get_mut(pod).filter(|_| open) else { return };
        if pod.has_started() || !takes_its_time(pod, now, faults) {
            run(pod, now);
        }
    }
}

/// Facts about the GPUs that only NVML reports.
fn tell_of_gpus(report: &mut Report) {
    let answering = report.nvml.state == NvmlState::Answering;
    report.nvml.gpus = answering.then(|| u32::try_from(report.gpus.len()).expect("few GPUs"));
    if answering {
        report.driver.cuda_version.get_or_insert_with(|| "13.1".into());
    }
    for gpu in &mut report.gpus {
        gpu.product = answering.then(|| format!("NVIDIA GPU {}", gpu.device_id));
        gpu.memory_mib = answering.then_some(16384);
        gpu.compute_capability = answering.then(|| "9.0".into());
        gpu.mig_capable = answering.then_some(true);
    }
}

/// Whether a pod is at work for longer than a moment, and has not ended it yet.
fn takes_its_time(pod: &mut PodFacts, now: Timestamp, faults: &Faults) -> bool {
    const STEP: &str = "takes-its-time";
    if faults.slow == 0 {
        return false;
    }
    let Some(at) = pod.init.iter().position(|init| init.name == STEP) else {
        let state = ContainerState::Running(Some(now));
        pod.init.push(ContainerFacts { name: STEP.into(), state, last_failure: None, ready: false });
        return true;
    };
    let since = pod.init[at].running_since().unwrap_or(now);
    if now.duration_since(since).as_secs() < faults.slow {
        return true;
    }
    pod.init.remove(at);
    false
}

/// What makes device nodes beside NVIDIA's container.
const SIDECAR: &str = "device-nodes";

/// The step of a toolkit's pod that restarts the container runtime.
const RESTART: &str = "restart-runtime";

/// Whether a toolkit's pod restarts the container runtime.
fn restarts_runtime(template: &PodSpec) -> bool {
    template.init_containers.iter().flatten().any(|init| init.name == RESTART)
}

/// A driver's pod does not install while the driver that is loaded is in use.
fn wait_at_guard(pod: &mut PodFacts, now: Timestamp) {
    if pod.init.is_empty() {
        let state = ContainerState::Running(Some(now));
        pod.init = vec![ContainerFacts { name: "guard-driver-in-use".into(), state, last_failure: None, ready: false }];
    }
}

/// The version that an installer chooses if none is set.
const INSTALLERS_CHOICE: &str = "580.1.1";

/// The container that puts a driver onto the host, where the main one only stays.
fn installer(template: &PodSpec) -> Option<&Container> {
    template.init_containers.iter().flatten().find(|init| init.name == "install-driver")
}

fn told<'c>(container: &'c Container, name: &str) -> Option<&'c str> {
    container.env.iter().flatten().find(|variable| variable.name == name)?.value.as_deref()
}

/// A test ends: well, or with an exit of its own.
pub fn end_test(pod: &mut PodFacts, failure: Option<Exit>) {
    let (reason, message) = (String::new(), String::new());
    pod.end = Some(PodEnd { succeeded: failure.is_none(), reason, message, at: None });
    let exit = failure.unwrap_or(Exit { code: 0, message: "Completed".into() });
    for container in &mut pod.containers {
        container.state = ContainerState::Ended(exit.clone());
        container.ready = false;
    }
}

/// What is offered, and the names of what was.
fn merged(gone: &Resources, offered: &Resources) -> Resources {
    let kept = gone.names().filter(|name| offered.names().all(|offered| offered != *name));
    kept.map(|name| (name.clone(), 0)).chain(offered.names().map(|name| (name.clone(), offered.amount(name)))).collect()
}

/// What the gate before the later stages checks: a driver that is loaded and in place, the wanted one where one is named.
/// Of a driver that a container installs, that container has to run.
fn gate_opens(template: &PodSpec, machine: &Report, driver_runs: bool) -> bool {
    let gate = template.init_containers.iter().flatten().find_map(|init| init.args.as_ref()).expect("a gate");
    let value = |flag: &str| gate.iter().skip_while(|arg| *arg != flag).nth(1);
    let Some(loaded) = &machine.driver.loaded else { return false };
    value("--version").is_none_or(|wanted| wanted == loaded || loaded.starts_with(&format!("{wanted}.")))
        && (driver_runs || value("--pid-file").is_none())
        && machine
            .driver
            .installed
            .iter()
            .any(|found| Some(&found.root) == value("--driver-root") && found.version == *loaded)
}

fn new_pod(name: &str, node: &str, role: Role, now: Timestamp) -> PodFacts {
    let state = ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() };
    let main = ContainerFacts { name: "main".into(), state, last_failure: None, ready: false };
    PodFacts {
        name: name.into(),
        node: node.into(),
        role,
        group: None,
        applied: None,
        created: Some(now),
        gone_by: None,
        unschedulable: None,
        end: None,
        init: vec![],
        containers: vec![main],
    }
}

fn run(pod: &mut PodFacts, now: Timestamp) {
    for container in &mut pod.containers {
        // What found its work undone finds that again, however often it is started.
        if matches!(&container.state, ContainerState::Ended(exit) if exit.message.starts_with("RuntimeConfigDrifted")) {
            continue;
        }
        if !matches!(container.state, ContainerState::Running(_)) {
            container.state = ContainerState::Running(Some(now));
        }
        container.ready = true;
    }
}
