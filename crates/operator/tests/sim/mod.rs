//! A model of what surrounds the plan: API server, DaemonSet controller, kubelets and probes, in plain data. Tests
//! change facts, let it run, and look at what came of it. Time passes only when told to.
#![allow(dead_code, missing_docs, reason = "each test file uses its own part")]
#![allow(clippy::expect_used, reason = "a test's support fails as a test does")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use gpu_operator::{
    catalogue::Catalogue,
    plan::{Plan, plan},
    settings::Settings,
    world::{ContainerFacts, ContainerState, DaemonSetFacts, Exit, NodeFacts, PodFacts, Refusal, Role, Word, World},
};
use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicySpec, GpuNode, GpuNodeSpec, GpuNodeStatus, Report,
    policy::Stage,
    report::{Gpu, InstalledDriver, NvmlState, OsRelease},
};
use k8s_openapi::{
    api::apps::v1::DaemonSet,
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use kube::ResourceExt;

pub const CONTAINER_ROOT: &str = "/run/nvidia/driver";

/// How a node misbehaves.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Driver images of these versions cannot be pulled here.
    pub missing_images: BTreeSet<String>,
    /// The driver's container crashes with these words.
    pub driver_crash: Option<String>,
    /// The driver's container loads this version, whatever it is asked for.
    pub loads_instead: Option<String>,
    /// The API server refuses pods of every stage.
    pub pods_forbidden: bool,
    /// The plugin runs but kubelet publishes only so many GPUs.
    pub publishes: Option<u32>,
}

/// The model.
pub struct Sim {
    pub settings: Settings,
    pub catalogue: Catalogue,
    pub now: Timestamp,
    pub policies: BTreeMap<String, ClusterGpuPolicy>,
    pub nodes: BTreeMap<String, NodeFacts>,
    pub gpu_nodes: BTreeMap<String, GpuNode>,
    pub sets: BTreeMap<String, DaemonSet>,
    pub pods: BTreeMap<String, PodFacts>,
    pub refusals: BTreeMap<String, Refusal>,
    pub gpu_pods: BTreeMap<String, Vec<String>>,
    pub faults: BTreeMap<String, Faults>,
    /// Writes so far, by object.
    pub writes: BTreeMap<String, u32>,
    /// Every plan carried out, newest last.
    pub plans: Vec<Plan>,
}

impl Sim {
    pub fn new() -> Self {
        Self {
            settings: Settings {
                namespace: "gpu-operator".into(),
                probe_image: "registry.example.com/nvml-probe:1".into(),
                probe_pull_policy: "IfNotPresent".into(),
                image_pull_secrets: vec![],
            },
            catalogue: Catalogue::builtin().expect("the catalogue is sound"),
            now: "2026-01-01T00:00:00Z".parse().expect("a time"),
            policies: BTreeMap::new(),
            nodes: BTreeMap::new(),
            gpu_nodes: BTreeMap::new(),
            sets: BTreeMap::new(),
            pods: BTreeMap::new(),
            refusals: BTreeMap::new(),
            gpu_pods: BTreeMap::new(),
            faults: BTreeMap::new(),
            writes: BTreeMap::new(),
            plans: vec![],
        }
    }

    /// A fleet of nodes with eight H100 each that has settled under a policy `all` of this spec.
    pub fn settled_fleet(spec: &str, nodes: &[&str]) -> Self {
        let mut sim = Self::new().policy("all", spec);
        for node in nodes {
            sim.join(node, "2330", 8);
        }
        sim.settle();
        sim
    }

    /// A node with `count` GPUs of a PCI device id, that has reported.
    pub fn gpu_node(mut self, name: &str, device_id: &str, count: u32) -> Self {
        self.join(name, device_id, count);
        self
    }

    pub fn join(&mut self, name: &str, device_id: &str, count: u32) {
        self.join_plain(name);
        let gpus = (0..count).map(|index| Gpu {
            pci_address: format!("0000:{:02x}:00.0", index + 6),
            device_id: device_id.into(),
            ..Gpu::default()
        });
        let report = Report {
            boot_id: "boot-1".into(),
            os: OsRelease { id: "ubuntu".into(), version_id: "22.04".into() },
            gpus: gpus.collect(),
            ..Report::default()
        };
        let mut gpu_node = GpuNode::new(name, GpuNodeSpec::default());
        gpu_node.status = Some(GpuNodeStatus { report: Some(report), ..GpuNodeStatus::default() });
        self.gpu_nodes.insert(name.into(), gpu_node);
    }

    /// A node without GPUs.
    pub fn join_plain(&mut self, name: &str) {
        let node = NodeFacts {
            name: name.into(),
            uid: format!("uid-{name}"),
            ready: true,
            created: Some(self.now),
            arch: "amd64".into(),
            runtime: "containerd://2.1.4".into(),
            labels: BTreeMap::from([("kubernetes.io/hostname".into(), name.into())]),
            ..NodeFacts::default()
        };
        self.nodes.insert(name.into(), node);
    }

    pub fn policy(mut self, name: &str, spec: &str) -> Self {
        self.apply_policy(name, spec);
        self
    }

    /// Creates a policy or changes its spec, written as YAML.
    pub fn apply_policy(&mut self, name: &str, spec: &str) {
        let spec = serde_yaml::from_str(spec).expect("a policy's spec");
        let age = i64::try_from(self.policies.len()).expect("few policies");
        let policy = self.policies.entry(name.into()).or_insert_with(|| {
            let mut policy = ClusterGpuPolicy::new(name, ClusterGpuPolicySpec::default());
            policy.metadata.uid = Some(format!("uid-{name}"));
            policy.metadata.creation_timestamp = Some(Time(self.now + SignedDuration::from_secs(age)));
            policy.metadata.generation = Some(0);
            policy
        });
        policy.spec = spec;
        policy.metadata.generation = policy.metadata.generation.map(|generation| generation + 1);
    }

    pub fn delete_policy(&mut self, name: &str) {
        let now = Time(self.now);
        self.policies.get_mut(name).expect("a policy").metadata.deletion_timestamp = Some(now);
    }

    pub fn report(&mut self, node: &str) -> &mut Report {
        let status = self.gpu_nodes.get_mut(node).expect("a GpuNode").status.get_or_insert_default();
        status.report.get_or_insert_default()
    }

    pub fn status(&self, node: &str) -> GpuNodeStatus {
        self.gpu_nodes[node].status.clone().unwrap_or_default()
    }

    /// A host driver of this version, loaded or only installed.
    pub fn host_driver(&mut self, node: &str, version: &str, loaded: bool) {
        let driver = &mut self.report(node).driver;
        driver.installed.push(InstalledDriver { root: "/".into(), version: version.into() });
        driver.loaded = loaded.then(|| version.into());
    }

    pub fn world(&self) -> World {
        fn arcs<T: Clone>(map: &BTreeMap<String, T>) -> BTreeMap<String, Arc<T>> {
            map.iter().map(|(name, value)| (name.clone(), Arc::new(value.clone()))).collect()
        }
        World {
            policies: arcs(&self.policies),
            nodes: arcs(&self.nodes),
            gpu_nodes: arcs(&self.gpu_nodes),
            daemon_sets: self
                .sets
                .iter()
                .map(|(name, set)| (name.clone(), Arc::new(DaemonSetFacts::of(set))))
                .collect(),
            pods: arcs(&self.pods),
            refusals: arcs(&self.refusals),
            ..World::default()
        }
    }

    /// The plan for the world as it is, questions answered.
    pub fn plan(&self) -> Plan {
        self.plan_for(self.world())
    }

    /// The plan for a world, questions answered as the loop does it.
    pub fn plan_for(&self, mut world: World) -> Plan {
        loop {
            let plan = plan(&self.settings, &self.catalogue, &world, self.now);
            if plan.questions.is_empty() {
                return plan;
            }
            let answer = |node: &String| (node.clone(), self.gpu_pods.get(node).cloned().unwrap_or_default());
            world.gpu_pods.extend(plan.questions.iter().map(answer));
        }
    }

    /// One pass of the operator, and what the cluster makes of it. Whether anything happened.
    pub fn step(&mut self) -> bool {
        let plan = self.plan();
        let wrote = !plan.is_empty();
        self.carry_out(&plan);
        self.plans.push(plan);
        let moved = self.surroundings();
        wrote || moved
    }

    /// Runs until nothing happens any more, a second to a step.
    pub fn settle(&mut self) {
        self.run(200);
        assert!(!self.step(), "not settled after 200 steps: {:#?}", self.plans.last());
    }

    /// Runs for at most so many steps of a second, passing over what waits for time alone.
    pub fn run(&mut self, steps: u32) {
        for _ in 0..steps {
            let happened = self.step();
            self.now += SignedDuration::from_secs(1);
            if !happened && !self.due() {
                break;
            }
        }
    }

    /// Whether the last plan wants to be made again within a minute.
    fn due(&self) -> bool {
        let check = self.plans.last().and_then(|plan| plan.check_again);
        check.is_some_and(|at| at.duration_since(self.now) < SignedDuration::from_secs(60))
    }

    pub fn sleep(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }

    fn wrote(&mut self, object: String) {
        *self.writes.entry(object).or_default() += 1;
    }

    /// Carries out the first writes of a plan, in the order in which they are made, as an operator does that is killed
    /// in the middle.
    pub fn carry_out_first(&mut self, plan: &Plan, mut writes: usize) {
        let mut part = Plan::default();
        let mut take = || {
            let left = writes > 0;
            writes = writes.saturating_sub(1);
            left
        };
        let all = plan.clone();
        part.finalizers =
            all.finalizers.iter().filter(|(_, on)| **on && take()).map(|(name, on)| (name.clone(), *on)).collect();
        part.daemon_sets = all.daemon_sets.into_iter().filter(|_| take()).collect();
        for (name, write) in &all.gpu_nodes {
            if write.spec.is_some() && take() {
                part.gpu_nodes.entry(name.clone()).or_default().spec.clone_from(&write.spec);
            }
        }
        part.labels = all.labels.into_iter().filter(|_| take()).collect();
        for (name, write) in &all.gpu_nodes {
            if write.status.is_some() && take() {
                part.gpu_nodes.entry(name.clone()).or_default().status.clone_from(&write.status);
            }
        }
        part.policies = all.policies.into_iter().filter(|_| take()).collect();
        part.prune = all.prune.into_iter().filter(|_| take()).collect();
        part.finalizers.extend(all.finalizers.into_iter().filter(|(_, on)| !on && take()));
        self.carry_out(&part);
        self.surroundings();
    }

    pub fn carry_out(&mut self, plan: &Plan) {
        for (name, on) in &plan.finalizers {
            self.wrote(format!("policy/{name}"));
            let policy = self.policies.get_mut(name).expect("a policy");
            policy.metadata.finalizers = on.then(|| vec![gpu_operator_crd::keys::FINALIZER.into()]);
            if !on && policy.metadata.deletion_timestamp.is_some() {
                self.policies.remove(name);
            }
        }
        for (name, write) in &plan.daemon_sets {
            self.wrote(format!("daemonset/{name}"));
            let mut set = write.set.clone();
            set.metadata.generation =
                Some(self.sets.get(name).and_then(|set| set.metadata.generation).unwrap_or(0) + 1);
            self.sets.insert(name.clone(), set);
        }
        for (name, write) in &plan.labels {
            self.wrote(format!("node/{name}"));
            let node = self.nodes.get_mut(name).expect("a node");
            for key in std::mem::take(&mut node.owned_labels) {
                node.labels.remove(&key);
            }
            for (key, value) in &write.labels {
                node.labels.insert(key.into(), value.into());
                node.owned_labels.insert(key.into());
            }
        }
        for (name, write) in &plan.gpu_nodes {
            let mut gpu_node =
                self.gpu_nodes.get(name).cloned().unwrap_or_else(|| GpuNode::new(name, GpuNodeSpec::default()));
            if let Some((spec, owner)) = &write.spec {
                self.wrote(format!("node/{name}"));
                gpu_node.spec = spec.clone();
                gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
            }
            if let Some(status) = &write.status {
                self.wrote(format!("node/{name}"));
                let report = gpu_node.status.as_ref().and_then(|status| status.report.clone());
                gpu_node.status = Some(GpuNodeStatus { report, ..status.clone() });
            }
            self.gpu_nodes.insert(name.clone(), gpu_node);
        }
        for name in &plan.prune {
            self.wrote(format!("daemonset/{name}"));
            self.sets.remove(name);
        }
        for name in &plan.renew {
            self.wrote(format!("pod/{name}"));
            self.pods.remove(name);
        }
        for (name, status) in &plan.policies {
            self.wrote(format!("policy/{name}"));
            if let Some(policy) = self.policies.get_mut(name) {
                policy.status = Some(status.clone());
            }
        }
    }

    /// One turn of DaemonSet controller, kubelets and probes. Whether anything changed.
    fn surroundings(&mut self) -> bool {
        // A refusal is repeated for ever; that alone is no news.
        let before = (self.pods.clone(), self.nodes.clone(), self.gpu_nodes.clone(), self.refusals.len());
        let names: Vec<String> = self.nodes.keys().cloned().collect();
        for name in &names {
            if self.nodes[name].ready {
                self.place_pods(name);
                self.run_node(name);
            }
        }
        before != (self.pods.clone(), self.nodes.clone(), self.gpu_nodes.clone(), self.refusals.len())
    }

    /// Pods as the node's labels and the DaemonSets there are call for.
    fn place_pods(&mut self, node: &str) {
        let faults = self.faults.get(node).cloned().unwrap_or_default();
        for stage in Stage::ALL {
            let group = self.nodes[node].labels.get(stage.key()).cloned();
            let set = group
                .as_ref()
                .map(|group| format!("{}-{group}", stage.as_str()))
                .filter(|set| self.sets.contains_key(set));
            let name = format!("{}@{node}", stage.as_str());
            let present = self.pods.get(&name).and_then(|pod| pod.group.clone());
            if present.is_some() && (present != group || set.is_none()) {
                self.pods.remove(&name);
                continue; // The new one comes when the old one is gone.
            }
            let Some(set) = set.filter(|set| self.tolerates(set, node)) else { continue };
            if faults.pods_forbidden {
                self.refusals.insert(
                    set,
                    Refusal { message: "pods is forbidden: violates PodSecurity".into(), at: Some(self.now) },
                );
                continue;
            }
            let applied = self.sets[&set].annotations().get(gpu_operator_crd::keys::APPLIED).map(Word::from);
            self.pods.entry(name.clone()).or_insert_with(|| PodFacts {
                name,
                node: node.into(),
                role: Role::Operand(stage),
                group,
                applied,
                created: Some(self.now),
                deleting: false,
                unschedulable: None,
                init: vec![],
                containers: vec![container(
                    "main",
                    ContainerState::Waiting { reason: "PodInitializing".into(), message: String::new() },
                )],
            });
        }
    }

    /// Whether the DaemonSet controller makes pods of a set for a node with its taints.
    fn tolerates(&self, set: &str, node: &str) -> bool {
        let pod = self.sets[set].spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
        let tolerations = pod.and_then(|pod| pod.tolerations.clone()).unwrap_or_default();
        let mut taints = self.nodes[node].taints.iter();
        taints.all(|taint| tolerations.iter().any(|toleration| taint.tolerated_by(toleration)))
    }

    fn run_node(&mut self, node: &str) {
        if !self.gpu_nodes.contains_key(node) {
            return; // Its probe is about to make it anew.
        }
        let faults = self.faults.get(node).cloned().unwrap_or_default();
        self.probe(node);
        self.run_driver(node, &faults);
        let ready = self.driver_gate_open(node);
        if let Some(pod) = self.pods.get_mut(&format!("toolkit@{node}"))
            && ready
        {
            run(pod, self.now);
        }
        let toolkit = self.pods.get(&format!("toolkit@{node}")).is_some_and(PodFacts::running);
        let plugin = format!("device-plugin@{node}");
        if let Some(pod) = self.pods.get_mut(&plugin)
            && ready
            && toolkit
        {
            run(pod, self.now);
        }
        let serves = self.pods.get(&plugin).is_some_and(PodFacts::running);
        let on_bus = self.gpu_nodes.get(node).map_or(0, |gpu_node| {
            gpu_node.status.as_ref().and_then(|status| status.report.as_ref()).map_or(0, |report| report.gpus.len())
        });
        let count = faults.publishes.unwrap_or(u32::try_from(on_bus).expect("few GPUs"));
        let facts = self.nodes.get_mut(node).expect("a node");
        if serves {
            facts.allocatable = Some(count);
        } else if facts.allocatable.is_some() {
            facts.allocatable = Some(0);
        }
    }

    /// The probe holds NVML while a driver works, and lets go when asked.
    fn probe(&mut self, node: &str) {
        let Some(gpu_node) = self.gpu_nodes.get_mut(node) else {
            return;
        };
        let release = gpu_node.spec.release_driver;
        let Some(report) = gpu_node.status.as_mut().and_then(|status| status.report.as_mut()) else {
            return;
        };
        report.nvml.state = match (&report.driver.loaded, release) {
            (_, true) => NvmlState::Released,
            (Some(_), false) => NvmlState::Answering,
            (None, false) => NvmlState::Absent,
        };
    }

    /// The version of a driver pod, from its DaemonSet's image.
    pub fn driver_version(&self, node: &str) -> Option<String> {
        let group = self.pods.get(&format!("driver@{node}"))?.group.clone()?;
        let set = self.sets.get(&format!("driver-{group}"))?;
        let image = set.spec.as_ref()?.template.spec.as_ref()?.containers.first()?.image.clone()?;
        Some(image.rsplit_once(':')?.1.split('-').next()?.to_owned())
    }

    fn run_driver(&mut self, node: &str, faults: &Faults) {
        let name = format!("driver@{node}");
        let version = self.driver_version(node);
        let now = self.now;
        let (Some(pod), Some(version)) = (self.pods.get_mut(&name), version) else {
            return;
        };
        let container = &mut pod.containers[0];
        let runs = matches!(container.state, ContainerState::Running(_));
        if faults.missing_images.contains(&version) && !runs {
            container.state =
                ContainerState::Waiting { reason: "ImagePullBackOff".into(), message: "not found".into() };
            container.ready = false;
            return;
        }
        if let Some(words) = &faults.driver_crash {
            let exit = Exit { code: 1, message: words.clone() };
            container.state = ContainerState::Waiting { reason: "CrashLoopBackOff".into(), message: "back-off".into() };
            container.last_failure = Some(exit);
            container.ready = false;
            return;
        }
        container.last_failure = None;
        run(pod, now);
        let used = self.gpu_pods.get(node).is_some_and(|pods| !pods.is_empty());
        let report = self.report(node);
        // It loads when it starts; having loaded the wrong one, it tries again once the cause is gone.
        let wrong = report.driver.loaded.as_ref() != Some(&version);
        let loads = faults.loads_instead.clone().unwrap_or(version);
        if report.driver.loaded.as_ref() != Some(&loads) && (!runs || wrong) {
            // A driver moves only when nothing holds it: the container refuses to unload one that is in use.
            if report.driver.loaded.is_some() && (used || report.nvml.state == NvmlState::Answering) {
                return;
            }
            report.driver.loaded = Some(loads.clone());
            report.driver.installed.retain(|installed| installed.root != CONTAINER_ROOT);
            report.driver.installed.push(InstalledDriver { root: CONTAINER_ROOT.into(), version: loads });
        }
    }

    /// What the later stages' gate checks: the wanted version, or any where the driver is the host's.
    fn driver_gate_open(&mut self, node: &str) -> bool {
        let labels = &self.nodes[node].labels;
        let ours = labels.contains_key(Stage::Driver.key());
        let wanted = labels.get(Stage::Toolkit.key()).and_then(|group| self.gate_version(group));
        let Some(report) = self.gpu_nodes.get(node).and_then(|gpu_node| gpu_node.status.as_ref()?.report.clone())
        else {
            return false;
        };
        match (&report.driver.loaded, wanted) {
            (Some(loaded), Some(wanted)) => *loaded == wanted,
            (Some(_), None) => !ours,
            (None, _) => false,
        }
    }

    fn gate_version(&self, group: &str) -> Option<String> {
        let set = self.sets.get(&format!("toolkit-{group}"))?;
        let gate = set.spec.as_ref()?.template.spec.as_ref()?.init_containers.as_ref()?.first()?.args.clone()?;
        let at = gate.iter().position(|arg| arg == "--version")?;
        gate.get(at + 1).cloned()
    }

    /// DaemonSets of a stage, by name.
    pub fn sets_of(&self, stage: Stage) -> Vec<&DaemonSet> {
        let prefix = format!("{}-", stage.as_str());
        self.sets.values().filter(|set| set.name_any().starts_with(&prefix)).collect()
    }

    /// The image of a DaemonSet's main container.
    pub fn image(set: &DaemonSet) -> String {
        let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()).expect("a pod's spec");
        spec.containers[0].image.clone().expect("an image")
    }

    /// A policy's condition: status and reason.
    pub fn condition(&self, policy: &str, kind: &str) -> (String, String) {
        let status = self.policies[policy].status.clone().unwrap_or_default();
        let condition = status.conditions.into_iter().find(|condition| condition.type_ == kind);
        condition.map(|condition| (condition.status, condition.reason)).unwrap_or_default()
    }
}

fn container(name: &str, state: ContainerState) -> ContainerFacts {
    ContainerFacts { name: name.into(), state, last_failure: None, ready: false }
}

fn run(pod: &mut PodFacts, now: Timestamp) {
    for container in &mut pod.containers {
        if !matches!(container.state, ContainerState::Running(_)) {
            container.state = ContainerState::Running(Some(now));
        }
        container.ready = true;
    }
}
