//! `pass-benchmark [NODES]`: measures what a pass of the operator over a settled fleet costs: if nothing has changed since the pass before,
//! if nodes have changed, and if a policy has. A pass is measured from the mirrors to its first write. Then it counts the requests that the
//! operator makes while an update is pending and pods use the GPUs of all nodes. The fleet is that of the tests' simulator.
//!
//! `cargo run --release -p benchmark --bin pass-benchmark`

mod operator;
mod stopwatch;

use std::{collections::BTreeSet, time::Duration};

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::{ClusterGpuPolicySpec, NodeName, health::HealthState};
use gpu_operator_plan::{
    loop_memory::LoopState,
    pass::{Planning, Request},
    plan,
    time::Uptime,
    world::World,
};
use k8s_openapi::{api::core::v1::EnvVar, apimachinery::pkg::apis::meta::v1::Time};
use operator::{Measured, Operator};
use stopwatch::Stopwatch;
use test_support::sim::Sim;

const NODES: usize = 5000;
const GPUS: u32 = 8;
const LABELS: usize = 90;
/// The PCI device ids of H100, T4, K80, P100, V100, A100, L4 and B200.
const MODELS: [&str; 8] = ["2330", "1eb8", "102d", "15f9", "1db6", "20b2", "27b8", "2901"];
const POLICY: &str = "{nodeLabels: [{key: accelerator}], pools: [
    {name: p100, match: {models: [nvidia-tesla-p100]}, driver: {version: 580.173.02}},
    {name: labelled, match: {nodeSelector: {matchLabels: {example.com/none: here}}}},
]}";
/// The number of plans that are measured.
const PLANS: usize = 30;
/// One in so many nodes changes at a time.
const SHARE: usize = 100;
/// The maximum number of passes until the fleet is settled.
const PASSES: usize = 30;
/// The minutes for which an update is pending.
const MINUTES: usize = 3;

/// What changes before a pass.
struct Scenario {
    name: &'static str,
    /// The number of passes that are measured. The operator makes other passes in between until the fleet is settled again.
    runs: usize,
    /// Changes the cluster before this run.
    change: fn(&mut Sim, usize),
}

const SCENARIOS: [Scenario; 4] = [
    Scenario { name: "nothing", runs: 30, change: |_, _| () },
    Scenario { name: "health of a GPU, 1 % of the nodes", runs: 20, change: change_health },
    Scenario { name: "rollout.maxParallel of the policy", runs: 10, change: change_limit },
    Scenario { name: "driver of the policy, rollout paused", runs: 6, change: change_driver },
];

fn main() -> Result<()> {
    let nodes = std::env::args()
        .nth(1)
        .map_or(Ok(NODES), |nodes| nodes.parse())
        .context("the argument is not a number of nodes")?;
    let mut sim = settled(nodes)?;
    let world = sim.world();
    let (sets, pods) = (sim.sets.len(), sim.pods.len());
    println!(
        "{nodes} settled nodes of {GPUS} GPUs and {LABELS} labels, {sets} DaemonSets, {pods} pods; processor time in ms"
    );
    let (least, median) = summary((0..PLANS).map(|_| measure(&sim, &world)).collect::<Result<_>>()?);
    println!("a plan without memory of earlier ones: minimum {least}, median {median}");
    drop(world);
    let mut operator = Operator::default();
    operator.settle(&mut sim)?;
    println!("{:36} {:>4} {:>8} {:>8} {:>8}  requests of a pass", "changed", "runs", "minimum", "median", "mirrors");
    for scenario in &SCENARIOS {
        measure_passes(&mut operator, &mut sim, scenario)?;
    }
    println!("mirrors: median for the mirrors to show the world, a part of the pass");
    sim.apply_policy("all", POLICY);
    operator.settle(&mut sim)?;
    let Busy { lists, longest } = measure_busy(&mut sim)?;
    println!("with a pending update and GPU pods on all nodes: LISTs of pods in each minute {lists:?}");
    println!("longest planning of a pass: {longest:.1?}");
    Ok(())
}

/// Returns minimum and median.
fn summary(mut times: Vec<Duration>) -> (String, String) {
    times.sort_unstable();
    let milliseconds = |time: Option<&Duration>| time.map(|time| format!("{:.2}", time.as_secs_f64() * 1e3));
    let [least, median] = [times.first(), times.get(times.len() / 2)].map(milliseconds);
    (least.unwrap_or_default(), median.unwrap_or_default())
}

/// Prints what the passes cost of which each follows a change of the settled fleet.
fn measure_passes(operator: &mut Operator, sim: &mut Sim, scenario: &Scenario) -> Result<()> {
    let Scenario { name, runs, change } = scenario;
    let (mut worlds, mut times, mut different) = (Vec::new(), Vec::new(), BTreeSet::new());
    for run in 0..*runs {
        change(sim, run);
        operator.sleep(sim, 1)?;
        let Measured { world, planned, requests, .. } = operator.pass(sim)?;
        worlds.push(world);
        times.push(planned);
        different.insert(requests);
        operator.settle(sim)?;
    }
    let ((least, median), (_, mirrors)) = (summary(times), summary(worlds));
    let requests: Vec<_> = different.iter().map(ToString::to_string).collect();
    println!("{name:36} {runs:>4} {least:>8} {median:>8} {mirrors:>8}  {}", requests.join(" or "));
    Ok(())
}

/// Lets the probes of other nodes report in every second run that a GPU is degraded, and in the run after that it is healthy.
fn change_health(sim: &mut Sim, run: usize) {
    let names: Vec<_> = sim.nodes.keys().skip(run / 2 % SHARE).step_by(SHARE).cloned().collect();
    for name in names {
        let since = Some(Time(sim.now));
        if let Some(gpu) = sim.report(name.clone()).gpus.first_mut() {
            gpu.health.state = if run.is_multiple_of(2) { HealthState::Degraded } else { HealthState::Healthy };
            gpu.health.since = since;
        }
        sim.write_report(&name);
    }
}

/// Changes a field that concerns no node while no update is pending.
fn change_limit(sim: &mut Sim, run: usize) {
    change_policy(sim, |spec| spec.rollout.max_parallel = Some(if run.is_multiple_of(2) { 2 } else { 3 }));
}

/// Changes the driver of all nodes in every second run, and changes it back in the run after. No update begins.
fn change_driver(sim: &mut Sim, run: usize) {
    change_policy(sim, |spec| {
        spec.rollout.paused = Some(true);
        spec.defaults.driver.operand.env.clear();
        if run.is_multiple_of(2) {
            spec.defaults.driver.operand.env.push(variable());
        }
    });
}

/// Returns a variable of which the driver takes no notice, but which is a new revision.
fn variable() -> EnvVar {
    EnvVar { name: "ANY".into(), value: Some("change".into()), ..EnvVar::default() }
}

fn change_policy(sim: &mut Sim, change: impl FnOnce(&mut ClusterGpuPolicySpec)) {
    let mut spec = sim.policies.get(&"all".into()).map(|policy| policy.spec.clone()).unwrap_or_default();
    change(&mut spec);
    sim.apply_spec("all", spec);
}

/// Returns a fleet on which nothing is left to do.
fn settled(nodes: usize) -> Result<Sim> {
    let mut sim = Sim::new().policy("all", POLICY);
    for index in 0..nodes {
        let name = NodeName::from(format!("node-{index:05}"));
        sim.join(name.clone(), MODELS[index % MODELS.len()], GPUS);
        let label = |label| (format!("feature.example.com/label-{label:02}"), format!("value-of-label-{label}"));
        let labels: Vec<_> = (0..LABELS).map(label).map(|(key, value)| (key.into(), value.into())).collect();
        sim.node_mut(name).labels.extend(labels);
    }
    for _ in 0..PASSES {
        if !sim.step() {
            return Ok(sim);
        }
        sim.sleep(1);
    }
    let left = sim.plan();
    let writes = left.writes.iter().take(3).map(ToString::to_string);
    ensure!(left.is_empty(), "the fleet does not settle: {:?}", writes.collect::<Vec<_>>());
    Ok(sim)
}

/// Returns the time of one plan.
fn measure(sim: &Sim, world: &World) -> Result<Duration> {
    let started = Stopwatch::start()?;
    let plan = plan(&sim.settings, &sim.catalogue, world, sim.now);
    let took = started.elapsed()?;
    drop(std::hint::black_box(plan));
    Ok(took)
}

/// The cost of an update that waits for GPU pods.
struct Busy {
    /// The number of nodes whose pods were listed, in each minute.
    lists: [usize; MINUTES],
    /// The longest time that a pass planned, without the time of its requests.
    longest: Duration,
}

/// Changes the driver of all nodes, and makes the passes of some minutes, in which pods use the GPUs of all nodes. No probe reports them.
fn measure_busy(sim: &mut Sim) -> Result<Busy> {
    change_policy(sim, |spec| spec.defaults.driver.operand.env.push(variable()));
    sim.serves_pod_resources = false;
    sim.gpu_pods = sim.nodes.keys().map(|name| (name.clone(), vec!["team/training".to_owned()])).collect();
    let mut busy = Busy { lists: [0; MINUTES], longest: Duration::ZERO };
    let (mut carry, mut uptime) = (LoopState::default(), Uptime::ZERO);
    while let Some(lists) = busy.lists.get_mut(usize::try_from(uptime.as_secs() / 60)?) {
        let mut world = sim.world();
        carry.annotate(&mut world, uptime);
        let mut took = Duration::ZERO;
        let mut around = sim.around(&mut carry, uptime);
        let started = Stopwatch::start()?;
        let mut planning = Planning::begin(world, sim.now, &mut around);
        took += started.elapsed()?;
        loop {
            let started = Stopwatch::start()?;
            let question = planning.next(&mut around);
            took += started.elapsed()?;
            let Some(question) = question else { break };
            if let Request::ListPods(nodes, _) = &question {
                *lists += nodes.len();
            }
            planning.answer(sim.read(&question), &mut around);
        }
        busy.longest = busy.longest.max(took);
        let plan = planning.take().0;
        let check = plan.check_again.and_then(|at| Duration::try_from(at.duration_since(sim.now)).ok());
        let next = [carry.next(uptime), check].into_iter().flatten().min().unwrap_or(Duration::from_mins(1));
        let seconds = if plan.is_empty() { next.as_secs() + 1 } else { 1 };
        sim.step_with(plan);
        uptime += Duration::from_secs(seconds);
        sim.sleep(i64::try_from(seconds)?);
    }
    Ok(busy)
}
