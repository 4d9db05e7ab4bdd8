//! `plan-benchmark [NODES]`: measures the time that the operator plans for a settled fleet, and the requests that it makes while an
//! update is pending and pods use the GPUs of all nodes.
//!
//! Every pass takes at least this time: `cargo run --release -p benchmark --bin plan-benchmark`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

use gpu_operator_crd::{
    ClusterGpuPolicy, ClusterGpuPolicySpec, GpuNode, GpuNodeStatus, NodeName, Report,
    health::{GpuHealth, HealthState},
    policy::Stage,
    report::{Gpu, InstalledDriver, NvmlState, OsRelease},
};
use gpu_operator_plan::{
    Plan,
    carry::LoopState,
    catalogue::Catalogue,
    output::body::{Body, SpecWrite},
    pass::{Answer, Around, Planning, Request},
    plan,
    settings::Settings,
    time::Uptime,
    world::{ContainerFacts, ContainerState, DaemonSetFacts, GpuPod, GpuPods, NodeFacts, PodFacts, Role, World},
};
use k8s_openapi::{
    api::apps::v1::DaemonSet,
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use test_support::planned::Planned;

const NODES: usize = 5000;
const GPUS: usize = 8;
const LABELS: usize = 90;
/// The PCI device ids of H100, T4, K80, P100, V100, A100, L4 and B200.
const MODELS: [&str; 8] = ["2330", "1eb8", "102d", "15f9", "1db6", "20b2", "27b8", "2901"];
const RUNS: usize = 50;
/// The maximum number of passes until the fleet is settled.
const PASSES: usize = 20;
/// The minutes for which an update is pending.
const MINUTES: usize = 3;

fn main() -> Result<()> {
    let nodes = std::env::args()
        .nth(1)
        .map_or(Ok(NODES), |nodes| nodes.parse())
        .context("the argument is not a number of nodes")?;
    let mut fleet = Fleet::new(nodes)?;
    fleet.settle()?;
    let mut times: Vec<Duration> = (0..RUNS).map(|_| fleet.measure()).collect();
    times.sort_unstable();
    let (least, median, most) = (times[0], times[RUNS / 2], times[RUNS - 1]);
    println!("{nodes} settled nodes of {GPUS} GPUs and {LABELS} labels, {} DaemonSets", fleet.world.daemon_sets.len());
    println!("time of a plan in {RUNS} runs: minimum {least:.1?}, median {median:.1?}, maximum {most:.1?}");
    let Busy { lists, longest } = fleet.measure_busy()?;
    println!("with a pending update and GPU pods on all nodes: LISTs of pods in each minute {lists:?}");
    println!("longest planning of a pass: {longest:.1?}");
    Ok(())
}

/// The cost of an update that waits for GPU pods.
struct Busy {
    /// The number of nodes whose pods were listed, in each minute.
    lists: [usize; MINUTES],
    /// The longest time that a pass planned, without the time of its requests.
    longest: Duration,
}

/// A fleet as the plan sees it, without a cluster.
struct Fleet {
    settings: Settings,
    catalogue: Catalogue,
    world: World,
    now: Timestamp,
}

impl Fleet {
    fn new(nodes: usize) -> Result<Self> {
        let now = Timestamp::from_second(1_800_000_000)?;
        let mut policy = ClusterGpuPolicy::new("all", ClusterGpuPolicySpec::default());
        policy.spec = serde_json::from_value(serde_json::json!({
            "nodeLabels": [{"key": "accelerator"}],
            "pools": [
                {"name": "p100", "match": {"models": ["nvidia-tesla-p100"]}, "driver": {"version": "580.173.02"}},
                {"name": "labelled", "match": {"nodeSelector": {"matchLabels": {"example.com/none": "here"}}}},
            ],
        }))?;
        policy.metadata.uid = Some("uid-all".to_owned());
        policy.metadata.creation_timestamp = Some(Time(now));
        let names = || (0..nodes).map(|index| (index, NodeName::from(format!("node-{index:05}"))));
        let probes = names().map(|(_, name)| pod("nvml-probe", &name, Role::Probe, None, now));
        let world = World {
            policies: BTreeMap::from([("all".into(), Arc::new(policy))]),
            nodes: names().map(|(_, name)| (name.clone(), Arc::new(node(&name, now)))).collect(),
            gpu_nodes: names().map(|(index, name)| (name.clone(), Arc::new(gpu_node(&name, index)))).collect(),
            pods: probes.map(|pod| (pod.name.clone(), Arc::new(pod))).collect(),
            ..World::default()
        };
        let settings = Settings {
            namespace: "gpu-operator".to_owned(),
            probe_image: "registry.example.com/nvml-probe:1".to_owned(),
            probe_pull_policy: "IfNotPresent".to_owned(),
            ..Settings::default()
        };
        Ok(Self { settings, catalogue: Catalogue::builtin()?, world, now })
    }

    fn plan(&self) -> Plan {
        plan(&self.settings, &self.catalogue, &self.world, self.now)
    }

    /// Returns the time of one plan.
    fn measure(&self) -> Duration {
        let started = Instant::now();
        let plan = self.plan();
        let took = started.elapsed();
        drop(std::hint::black_box(plan));
        took
    }

    /// Applies plans, with all pods running at once, until nothing is left to do.
    fn settle(&mut self) -> Result<()> {
        for _ in 0..PASSES {
            let plan = self.plan();
            if plan.is_empty() {
                return Ok(());
            }
            self.apply(&plan)?;
            self.now = self.now.checked_add(SignedDuration::from_secs(1))?;
        }
        let left = self.plan();
        let writes = left.writes.iter().take(3).map(ToString::to_string);
        ensure!(left.is_empty(), "the fleet does not settle: {:?}", writes.collect::<Vec<_>>());
        Ok(())
    }

    /// Changes the driver of all nodes, and makes the passes of some minutes, in which pods use the GPUs of all nodes.
    fn measure_busy(&mut self) -> Result<Busy> {
        let policy = Arc::make_mut(self.world.policies.get_mut(&"all".into()).context("a policy")?);
        policy.spec.defaults.driver.operand.env =
            serde_json::from_value(serde_json::json!([{"name": "ANY", "value": "change"}]))?;
        let mut busy = Busy { lists: [0; MINUTES], longest: Duration::ZERO };
        let (mut carry, mut uptime) = (LoopState::default(), Uptime::ZERO);
        while let Some(lists) = busy.lists.get_mut(usize::try_from(uptime.as_secs() / 60)?) {
            let mut world = self.world.clone();
            carry.enrich(&mut world, uptime);
            let started = Instant::now();
            let Self { settings, catalogue, now, .. } = self;
            let mut around = Around { settings, catalogue, carry: &mut carry, uptime };
            let mut planning = Planning::begin(world, *now, &around);
            while let Some(Request::ListPods(nodes, _)) = planning.next(&mut around) {
                *lists += nodes.len();
                let user = GpuPod { name: "team/training".to_owned(), runs: true, ..GpuPod::default() };
                let pods = GpuPods { users: vec![user], ..GpuPods::default() };
                let pods = nodes.into_iter().map(|node| (node, pods.clone())).collect();
                planning.answer(Answer::Pods(pods), &mut around);
            }
            busy.longest = busy.longest.max(started.elapsed());
            let plan = planning.take().0;
            self.apply(&plan)?;
            let check = plan.check_again.and_then(|at| Duration::try_from(at.duration_since(self.now)).ok());
            let next = [carry.next(uptime), check].into_iter().flatten().min().unwrap_or(Duration::from_mins(1));
            let next = if plan.is_empty() { next.max(Duration::from_secs(1)) } else { Duration::from_secs(1) };
            uptime += next;
            self.now = self.now.checked_add(next)?;
        }
        Ok(busy)
    }

    fn apply(&mut self, plan: &Plan) -> Result<()> {
        let world = &mut self.world;
        for (name, status) in plan.policy_statuses() {
            let policy = Arc::make_mut(world.policies.get_mut(&name).context("a policy")?);
            policy.status = Some(status.clone());
            policy.metadata.finalizers = Some(vec![gpu_operator_crd::keys::FINALIZER.to_owned()]);
        }
        let sets = plan.daemon_sets();
        for (name, write) in &sets {
            world.daemon_sets.insert(name.clone(), Arc::new(DaemonSetFacts::of(&write.set)));
        }
        for (name, SpecWrite { spec, owner, .. }) in plan.specs() {
            let gpu_node = Arc::make_mut(world.gpu_nodes.get_mut(&name).context("a GpuNode")?);
            gpu_node.spec = spec.clone();
            gpu_node.metadata.owner_references = Some(vec![owner.clone()]);
        }
        for (name, status) in plan.node_statuses() {
            let gpu_node = Arc::make_mut(world.gpu_nodes.get_mut(&name).context("a GpuNode")?);
            let report = gpu_node.status.take().and_then(|status| status.report);
            gpu_node.status = Some(GpuNodeStatus { report, ..status.clone() });
        }
        for write in &plan.writes {
            if let Body::Presence(is_present) = &write.body {
                let node = world.nodes.get_mut(&NodeName::from(write.target.name.as_str())).context("a node")?;
                Arc::make_mut(node)
                    .labels
                    .insert(gpu_operator_crd::keys::PRESENT.into(), is_present.to_string().as_str().into());
            }
        }
        for (name, write) in &plan.labels() {
            let node = Arc::make_mut(world.nodes.get_mut(name).context("a node")?);
            node.labels.extend(write.labels.iter().map(|(key, value)| (key.into(), value.into())));
            node.owned_labels = write.labels.keys().map(Into::into).collect::<BTreeSet<_>>();
            node.allocatable = u32::try_from(GPUS)?.into();
            for stage in Stage::ALL {
                let Some(group) = write.labels.get(stage.key()) else { continue };
                let pod = pod(stage.as_str(), name, Role::Operand(stage), Some(group), self.now);
                world.pods.insert(pod.name.clone(), Arc::new(pod));
            }
            let version = sets
                .values()
                .find_map(|write| driver_version(&write.set, node.labels.get(Stage::Driver.key())?))
                .or_else(|| Some("580.173.02".to_owned()));
            let gpu_node = Arc::make_mut(world.gpu_nodes.get_mut(name).context("a GpuNode")?);
            let report = gpu_node.status.get_or_insert_default().report.get_or_insert_default();
            report.nvml.state = NvmlState::Answering;
            report.driver.installed = version
                .iter()
                .map(|version| InstalledDriver {
                    root: "/run/nvidia/driver".to_owned(),
                    version: version.clone(),
                    ..InstalledDriver::default()
                })
                .collect();
            report.driver.loaded = version;
        }
        Ok(())
    }
}

/// Returns the version that a driver's DaemonSet of this group installs.
fn driver_version(set: &DaemonSet, group: &str) -> Option<String> {
    let template = &set.spec.as_ref()?.template;
    (template.metadata.as_ref()?.labels.as_ref()?.get(Stage::Driver.key())? == group).then_some(())?;
    let image = template.spec.as_ref()?.containers.first()?.image.as_ref()?;
    Some(image.rsplit_once(':')?.1.split('-').next()?.to_owned())
}

fn node(name: &NodeName, now: Timestamp) -> NodeFacts {
    let label =
        |index| (format!("feature.example.com/label-{index:02}").into(), format!("value-of-label-{index}").into());
    NodeFacts {
        name: name.clone(),
        uid: format!("uid-{name}"),
        labels: (0..LABELS).map(label).collect(),
        ready: true,
        created: Some(now.into()),
        arch: "amd64".into(),
        runtime: "containerd://2.1.4".into(),
        ..NodeFacts::default()
    }
}

fn gpu_node(name: &NodeName, index: usize) -> GpuNode {
    let gpus = (0..GPUS).map(|gpu| Gpu {
        pci_address: format!("0000:{:02x}:00.0", gpu + 6),
        device_id: MODELS[index % MODELS.len()].to_owned(),
        product: Some("NVIDIA H100 80GB HBM3".to_owned()),
        uuid: Some(format!("GPU-{index:08x}-0000-0000-0000-{gpu:012x}")),
        memory_mib: Some(81_559),
        health: GpuHealth { state: HealthState::Healthy, ..GpuHealth::default() },
        ..Gpu::default()
    });
    let report = Report {
        probe_version: "0.2.0".to_owned(),
        boot_id: format!("boot-{name}"),
        // The last driver branch for Kepler has no image for a newer Ubuntu.
        os: OsRelease {
            id: "ubuntu".to_owned(),
            version_id: if MODELS[index % MODELS.len()] == "102d" { "20.04" } else { "22.04" }.to_owned(),
        },
        gpus: gpus.collect(),
        ..Report::default()
    };
    let mut gpu_node = GpuNode::new(name.as_str(), gpu_operator_crd::GpuNodeSpec::default());
    gpu_node.status = Some(GpuNodeStatus { report: Some(report), ..GpuNodeStatus::default() });
    gpu_node
}

/// Returns a running pod.
fn pod(of: &str, node: &NodeName, role: Role, group: Option<&str>, now: Timestamp) -> PodFacts {
    let main = ContainerFacts {
        name: "main".into(),
        state: ContainerState::Running(Some(now.into())),
        last_failure: None,
        ready: true,
    };
    PodFacts {
        name: format!("{of}-{node}"),
        node: node.clone(),
        role,
        group: group.map(Into::into),
        applied: None,
        created: Some(now.into()),
        deletion: None,
        unschedulable: None,
        end: None,
        init: Vec::new(),
        containers: vec![main],
    }
}
