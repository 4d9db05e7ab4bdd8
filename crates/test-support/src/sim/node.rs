//! The rest of a node's environment: the DaemonSet controller, kubelet, and the programs in the pods.

use std::time::Duration;

use gpu_operator_common::interned::Interned;
use gpu_operator_crd::{
    NodeName, Revision,
    health::HealthState,
    keys,
    policy::Stage,
    report::{GpuPods, NvmlState, Report},
};
use gpu_operator_plan::{
    time::{add, later},
    world::{
        ContainerFacts, ContainerState, Exit, ForeignPart, ForeignSet, PodFacts, Refusal, Resources, Role, TaintFact,
    },
};
use k8s_openapi::{
    api::core::v1::PodSpec,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

use super::{
    Sim,
    faults::{Faults, MigOutcome},
    plugin::{layout, offered, partitioned, published, replicas, waits_for},
    pod::{RESTART, SLOW_STEP, gate_opens, is_slow, new_pod, restarts_runtime, run},
    slices::is_by_claims,
};

/// The maximum number of GPU pods that a report names.
const MAX_NAMED_PODS: usize = 10;
/// How long a probe is ready that cannot report.
const MUTE_AT_MOST: Duration = Duration::from_mins(1);

impl Sim {
    /// Runs DaemonSet controller, kubelets and probes once, and returns whether anything changed.
    pub fn surroundings(&mut self) -> bool {
        // A rejection is repeated indefinitely, which does not count as a change.
        let facts = |sim: &Self| {
            let pods = (sim.pods.clone(), sim.refusals.len(), sim.gpu_slices.clone());
            (sim.nodes.clone(), sim.gpu_nodes.clone(), sim.machines.clone(), pods)
        };
        let before = facts(self);
        let names: Vec<_> = self.nodes.keys().cloned().collect();
        for name in &names {
            self.run_controller(name);
            self.run_kubelet(name);
            self.run_probe(name);
        }
        before != facts(self) || !self.slices_until.is_empty()
    }

    /// Creates and deletes the pods of a node, as the DaemonSet controller does.
    pub fn run_controller(&mut self, node: &NodeName) {
        if self.nodes[node].ready {
            self.place_probe(node);
            self.place_pods(node);
        }
    }

    /// Runs the pods of a node.
    pub fn run_kubelet(&mut self, node: &NodeName) {
        if self.nodes[node].ready {
            self.run_node(node);
            self.run_gpu_pods(node);
            self.note_service(node);
        }
        self.templates.retain(|name, _| self.pods.contains_key(name));
    }

    /// Lets the detector and the probe of a node report.
    pub fn run_probe(&mut self, node: &NodeName) {
        if self.nodes[node].ready {
            self.detect(node);
            self.write_report(node);
            self.note_service(node);
        }
    }

    fn faults_of(&self, node: &NodeName) -> Faults {
        self.faults.get(node).cloned().unwrap_or_default()
    }

    /// Creates the probe pod, which the chart deploys, or starts it after a reboot.
    fn place_probe(&mut self, node: &NodeName) {
        let name = format!("nvml-probe@{node}");
        if self.faults_of(node).no_probe || !self.nodes[node].is_labelled_present() {
            self.pods.remove(&name);
            return;
        }
        let now = self.now;
        self.pods.entry(name.clone()).or_insert_with(|| new_pod(&name, node, Role::Probe, now));
        self.start_probe(node);
    }

    /// Starts the pod of the probe, which is ready unless it cannot report for long.
    pub fn start_probe(&mut self, node: &NodeName) {
        let (now, is_mute) = (self.now, self.faults_of(node).mute_probe);
        let Some(pod) = self.pods.get_mut(&format!("nvml-probe@{node}")) else { return };
        let is_ready = if is_mute {
            Some(now < later(*self.mute_since.entry(node.clone()).or_insert(now), MUTE_AT_MOST))
        } else {
            self.mute_since.remove(node).map(|_| true)
        };
        if !pod.has_started() {
            run(pod, now);
        }
        if let Some(is_ready) = is_ready {
            pod.containers.iter_mut().for_each(|container| container.ready = is_ready);
        }
    }

    /// Creates and deletes pods according to the node's labels and the existing DaemonSets.
    fn place_pods(&mut self, node: &NodeName) {
        for stage in Stage::ALL {
            let revision = self.nodes[node].labels.get(stage.key()).filter(|revision| !revision.is_empty());
            let revision = revision.map(|revision| Revision::from(revision.as_str()));
            let set = revision.as_ref().map(|revision| format!("{}-{revision}", stage.as_str()));
            let set = set.filter(|set| self.sets.contains_key(set));
            let name = format!("{}@{node}", stage.as_str());
            let present = self.pods.get(&name).and_then(|pod| pod.revision.clone());
            if present.is_some() && (present != revision || set.is_none()) {
                self.end_pod(&name);
                continue; // The new pod is created once the old one is gone.
            }
            let Some(set) = set.filter(|set| self.untolerated(set, node).is_none()) else { continue };
            let faults = self.faults_of(node);
            let forbidden = faults.pods_forbidden.map(|words| format!("pods is forbidden: {words}"));
            if let Some(message) = forbidden.or(faults.pods_fail.map(str::to_owned)) {
                self.refusals.insert(set, Refusal { message, at: Some(self.now) });
            } else if !self.pods.contains_key(&name) {
                let applied = self.sets[&set].annotations().get(keys::APPLIED).map(Interned::from);
                let pod = PodFacts { revision, applied, ..new_pod(&name, node, Role::Operand(stage), self.now) };
                self.templates.insert(name.clone(), self.template(&set).clone());
                self.pods.insert(name, pod);
            }
        }
    }

    pub fn template(&self, set: &str) -> &PodSpec {
        self.sets[set].spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod's spec")
    }

    /// Returns whether a node's label selects a toolkit that restarts the container runtime.
    pub fn restarts_runtime(&self, node: &NodeName) -> bool {
        let revision = self.nodes[node].labels.get(keys::TOOLKIT);
        let set = revision.map(|revision| format!("{}-{revision}", Stage::Toolkit.as_str()));
        set.filter(|set| self.sets.contains_key(set)).is_some_and(|set| restarts_runtime(self.template(&set)))
    }

    /// Returns the number of pods that share a GPU of a node, according to the plugin that its label selects.
    pub fn replicas(&self, node: &NodeName) -> u32 {
        let revision = self.nodes[node].labels.get(keys::DEVICE_PLUGIN);
        let set = revision.map(|revision| format!("{}-{revision}", Stage::DevicePlugin.as_str()));
        set.filter(|set| self.sets.contains_key(set)).map_or(1, |set| replicas(self.template(&set)))
    }

    /// Returns whether the GPUs of a node lack the MIG layout that this pod of a device plugin applies.
    pub fn lacks_mig_layout(&self, plugin: &PodFacts) -> bool {
        let wanted = self.templates.get(&plugin.name).and_then(layout);
        wanted
            .zip(self.machines.get(&plugin.node))
            .is_some_and(|(wanted, Report { gpus, .. })| *gpus != partitioned(gpus, &wanted))
    }

    /// Returns whether a node's label selects an existing DaemonSet of a device plugin.
    pub fn has_plugin(&self, node: &NodeName) -> bool {
        let revision = self.nodes[node].labels.get(keys::DEVICE_PLUGIN);
        revision.is_some_and(|revision| self.sets.contains_key(&format!("{}-{revision}", Stage::DevicePlugin.as_str())))
    }

    /// Returns the first taint of a node that keeps the pods of a DaemonSet away, if that exists.
    pub fn untolerated(&self, set: &str, node: &NodeName) -> Option<&TaintFact> {
        let template = self.sets.contains_key(set).then(|| self.template(set))?;
        let tolerations = template.tolerations.as_deref().unwrap_or_default();
        let mut taints = self.nodes[node].taints.iter().filter(|taint| taint.keeps_pods_away());
        taints.find(|taint| !tolerations.iter().any(|toleration| taint.tolerated_by(toleration)))
    }

    fn run_node(&mut self, node: &NodeName) {
        let Some(machine) = self.machines.get(node) else { return };
        let on_bus = u32::try_from(machine.gpus.len()).expect("few GPUs");
        let faults = self.faults_of(node);
        self.hold_or_release(node);
        self.run_driver(node, &faults);
        // The probe looks again as soon as a driver is loaded.
        self.hold_or_release(node);
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
        if before && self.apply_mig_layout(&plugin, node, &faults) {
            self.run_behind_gate(&plugin, node, &faults);
        }
        self.run_tests(node, &faults);
        self.pull_images(node, &faults);
        let seen = faults.publishes.unwrap_or(on_bus);
        self.publish_slices(node, seen);
        let template_of_plugin = self.templates.get(&plugin).filter(|_| runs(self, &plugin));
        let template_of_plugin = template_of_plugin.filter(|template| !is_by_claims(template));
        let offered = template_of_plugin.map(|template| offered(template, &self.machines[node], seen));
        let third_party =
            || self.foreign_plugin_serves(node).then(|| Resources::from_iter([(self.foreign_resource.as_str(), seen)]));
        let unnamed = self.unnamed_plugins.get(node).map(|units| Resources::from(*units));
        let offered = unnamed.or(offered).or_else(third_party);
        if faults.late_kubelet {
            return;
        }
        let facts = self.nodes.get_mut(node).expect("a node");
        facts.boot_id = self.machines[node].boot_id.as_str().into();
        // Kubelet keeps the names of resources that are gone, with amount 0.
        let gone = facts.allocatable.withdrawn();
        facts.allocatable = match offered {
            None => gone,
            Some(offered) => published(&merged(&gone, &offered)),
        };
    }

    /// Returns whether a third-party device plugin has a pod and a loaded driver on a node.
    pub(super) fn foreign_plugin_serves(&self, node: &NodeName) -> bool {
        let plugin = ForeignPart::Stage(Stage::DevicePlugin);
        let sets = self.foreign_sets.values().filter_map(ForeignSet::of).filter(|set| set.part == plugin);
        self.machines[node].driver.loaded.is_some() && sets.into_iter().any(|set| set.reaches(&self.nodes[node]))
    }

    /// Lets the probe hold NVML while a driver is loaded, and release it on request.
    fn hold_or_release(&mut self, node: &NodeName) {
        let spec = self.gpu_nodes.get(node).map(|gpu_node| &gpu_node.spec);
        let release = spec.is_some_and(|spec| spec.release_driver);
        let lists = spec.is_some_and(|spec| spec.report_holders);
        let holders = lists.then(|| self.programs_on(node).map(|program| program.holder.clone()).collect());
        let assigned = self.gpu_pods.get(node).into_iter().flatten();
        let mut names: Vec<String> = assigned.filter(|_| self.serves_pod_resources).cloned().collect();
        names.sort_unstable();
        let count = u32::try_from(names.len()).expect("few pods");
        names.truncate(MAX_NAMED_PODS);
        let pods = GpuPods { count, names };
        let pods = (lists && self.serves_pod_resources).then_some(pods);
        let releases = release || !self.has_working_probe(node);
        let failure = self.faults.get(node).and_then(|faults| faults.nvml_failure.clone());
        let report = self.report(node);
        report.gpu_pods = pods;
        report.nvml.state = match (&report.driver.loaded, releases) {
            (_, true) => NvmlState::Released,
            (Some(_), false) if failure.is_some() => NvmlState::Failing,
            (Some(_), false) => NvmlState::Answering,
            (None, false) => NvmlState::Absent,
        };
        report.nvml.message = failure.filter(|_| report.nvml.state == NvmlState::Failing);
        report.driver.holders = holders;
        let in_use = self.is_driver_held(node);
        let report = self.report(node);
        report.driver.in_use = report.driver.loaded.is_some() && in_use;
        report_gpus(report);
        // A GPU that responds is healthy by default.
        let answering = report.nvml.state == NvmlState::Answering;
        for gpu in report.gpus.iter_mut().filter(|gpu| answering && gpu.health.state == HealthState::Unknown) {
            gpu.health.state = HealthState::Healthy;
        }
    }

    /// Applies the MIG layout before the plugin starts, and returns whether the plugin may start.
    fn apply_mig_layout(&mut self, plugin: &str, node: &NodeName, faults: &Faults) -> bool {
        let (runs, used) = (self.driver_runs(node), self.is_used(node));
        let template = self.templates.get(plugin).filter(|template| gate_opens(template, &self.machines[node], runs));
        let wanted = template.and_then(layout);
        let Some(pod) = self.pods.get_mut(plugin).filter(|pod| !pod.running()) else { return true };
        let Some(wanted) = wanted else { return true };
        let answering = self.machines[node].nvml.state == NvmlState::Answering;
        let partitioned = partitioned(&self.machines[node].gpus, &wanted);
        let changes = self.machines[node].gpus != partitioned;
        let used = changes && used;
        let words = match &faults.mig {
            _ if used => Some("MigBlocked: in use by a pod".into()),
            MigOutcome::Fails(words) => Some(words.clone()),
            MigOutcome::WaitsForProbe if answering => Some("MigBlocked: in use by a program".into()),
            MigOutcome::WaitsForProbe | MigOutcome::Done => None,
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
        self.report(node).gpus = partitioned;
        true
    }

    /// Returns whether the restart of the container runtime by the toolkit fails.
    fn fails_to_restart(&mut self, toolkit: &str, faults: &Faults) -> bool {
        let restarts = self.templates.get(toolkit).is_some_and(restarts_runtime);
        let first = |pod: &&mut PodFacts| matches!(pod.containers[0].state, ContainerState::Waiting { .. });
        let Some(pod) = self.pods.get_mut(toolkit).filter(|_| restarts).filter(first) else { return false };
        pod.init.clear();
        let Some(message) = faults.restart.clone() else {
            if let Some((facts, runtime)) = self.nodes.get_mut(&pod.node).zip(self.silent.remove(&pod.node)) {
                facts.runtime = runtime;
            }
            return false;
        };
        let state = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
        let last_failure = Some(Exit { code: 1, message });
        pod.init = vec![ContainerFacts { name: RESTART.into(), state, last_failure, ready: false }];
        true
    }

    /// Sets an unknown version for a runtime that is down, as kubelet does.
    fn silence(&mut self, node: &NodeName, faults: &Faults) {
        let down = faults.restart.as_ref().is_some_and(|words| words.starts_with("RuntimeDown"));
        let facts = self.nodes.get_mut(node).expect("a node");
        if down && !facts.runtime_is_silent() {
            self.silent.insert(node.clone(), std::mem::replace(&mut facts.runtime, "containerd://Unknown".into()));
        }
    }

    /// Returns whether the driver container runs, which gates detect by its lock.
    fn driver_runs(&self, node: &NodeName) -> bool {
        self.pods.get(&format!("driver@{node}")).is_some_and(PodFacts::has_started)
    }

    /// Returns when a node's state changes next although nothing happens.
    pub fn next_by_time(&self, node: &NodeName) -> Option<Timestamp> {
        let slow = SignedDuration::from_secs(self.faults.get(node).map_or(0, |faults| faults.slow));
        let steps = self.pods.values().filter(|pod| pod.node == *node).flat_map(|pod| &pod.init);
        let steps = steps.filter(|init| init.name == SLOW_STEP).filter_map(ContainerFacts::running_since);
        let silent = self.mute_since.get(node).map(|since| later(*since, MUTE_AT_MOST));
        steps.map(|since| add(since.local(), slow)).chain(silent).filter(|at| *at > self.now).min()
    }

    fn run_behind_gate(&mut self, pod: &str, node: &NodeName, faults: &Faults) {
        let (now, templates, machine) = (self.now, &self.templates, &self.machines[node]);
        let runs = self.driver_runs(node);
        let open = templates.get(pod).is_some_and(|template| gate_opens(template, machine, runs));
        let Some(pod) = self.pods.get_mut(pod).filter(|_| open) else { return };
        if faults.crashing.is_some_and(|stage| pod.role == Role::Operand(stage)) {
            let container = &mut pod.containers[0];
            container.state = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
            container.last_failure = Some(Exit { code: 1, message: "error: it broke".into() });
            container.ready = false;
            return;
        }
        if pod.has_started() || !is_slow(pod, now, faults) {
            run(pod, now);
        }
    }
}

/// Sets the facts about GPUs that only NVML reports.
fn report_gpus(report: &mut Report) {
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

/// Returns the offered resources, with amount 0 for those that are gone.
fn merged(gone: &Resources, offered: &Resources) -> Resources {
    let kept = gone.names().filter(|name| offered.names().all(|offered| offered != *name));
    kept.map(|name| (name.clone(), 0)).chain(offered.names().map(|name| (name.clone(), offered.amount(name)))).collect()
}
