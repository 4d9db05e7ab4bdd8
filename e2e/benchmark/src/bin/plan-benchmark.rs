//! `plan-benchmark [NODES]`: measures the time that the operator plans for a settled fleet, and the requests that it makes while an
//! update is pending and pods use the GPUs of all nodes. The fleet is that of the tests' simulator.
//!
//! Every pass takes at least this time: `cargo run --release -p benchmark --bin plan-benchmark`.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use gpu_operator_crd::NodeName;
use gpu_operator_plan::{
    loop_memory::LoopState,
    pass::{Planning, Request},
    plan,
    time::Uptime,
    world::World,
};
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
const RUNS: usize = 50;
/// The maximum number of passes until the fleet is settled.
const PASSES: usize = 30;
/// The minutes for which an update is pending.
const MINUTES: usize = 3;

fn main() -> Result<()> {
    let nodes = std::env::args()
        .nth(1)
        .map_or(Ok(NODES), |nodes| nodes.parse())
        .context("the argument is not a number of nodes")?;
    let mut sim = settled(nodes)?;
    let world = sim.world();
    let mut times: Vec<Duration> = (0..RUNS).map(|_| measure(&sim, &world)).collect();
    times.sort_unstable();
    let (least, median, most) = (times[0], times[RUNS / 2], times[RUNS - 1]);
    println!("{nodes} settled nodes of {GPUS} GPUs and {LABELS} labels, {} DaemonSets", sim.sets.len());
    println!("time of a plan in {RUNS} runs: minimum {least:.1?}, median {median:.1?}, maximum {most:.1?}");
    let Busy { lists, longest } = measure_busy(&mut sim)?;
    println!("with a pending update and GPU pods on all nodes: LISTs of pods in each minute {lists:?}");
    println!("longest planning of a pass: {longest:.1?}");
    Ok(())
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
fn measure(sim: &Sim, world: &World) -> Duration {
    let started = Instant::now();
    let plan = plan(&sim.settings, &sim.catalogue, world, sim.now);
    let took = started.elapsed();
    drop(std::hint::black_box(plan));
    took
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
    let mut spec = sim.policies.get(&"all".into()).context("no policy")?.spec.clone();
    spec.defaults.driver.operand.env = serde_json::from_value(serde_json::json!([{"name": "ANY", "value": "change"}]))?;
    sim.apply_spec("all", spec);
    sim.serves_pod_resources = false;
    sim.gpu_pods = sim.nodes.keys().map(|name| (name.clone(), vec!["team/training".to_owned()])).collect();
    let mut busy = Busy { lists: [0; MINUTES], longest: Duration::ZERO };
    let (mut carry, mut uptime) = (LoopState::default(), Uptime::ZERO);
    while let Some(lists) = busy.lists.get_mut(usize::try_from(uptime.as_secs() / 60)?) {
        let mut world = sim.world();
        carry.annotate(&mut world, uptime);
        let mut took = Duration::ZERO;
        let mut around = sim.around(&mut carry, uptime);
        let started = Instant::now();
        let mut planning = Planning::begin(world, sim.now, &mut around);
        took += started.elapsed();
        loop {
            let started = Instant::now();
            let question = planning.next(&mut around);
            took += started.elapsed();
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
