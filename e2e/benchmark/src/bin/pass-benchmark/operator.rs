//! What the operator keeps from one pass to the next, and its passes over the simulator's cluster.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use gpu_operator_common::{
    copy_on_write::CopyOnWrite,
    mirror::{Mirror, View},
};
use gpu_operator_crd::{ClusterGpuPolicy, GpuNode, NodeName, PolicyName};
use gpu_operator_plan::{
    loop_memory::LoopState,
    pass::{Answer, Pass, Request},
    time::Uptime,
    world::{
        DaemonSetFacts, ForeignPod, ForeignSet, GpuSlice, NodeFacts, PodFacts, Pods, Refusal, RuntimeClassFacts, World,
    },
};
use test_support::sim::Sim;

use crate::stopwatch::Stopwatch;

/// The maximum number of passes until nothing is left to do.
const PASSES: usize = 60;
/// A pass that is due later is not waited for.
const SOON: Duration = Duration::from_mins(10);

/// An operator that began with an empty memory, like a replica that has become the leader.
#[derive(Default)]
pub struct Operator {
    mirrors: Mirrors,
    memory: LoopState,
    uptime: Uptime,
}

/// What a pass took, and what it did.
pub struct Measured {
    /// The time until the mirrors have shown the world.
    pub world: Duration,
    /// The time until the first write is ready, without the time of earlier requests.
    pub planned: Duration,
    pub requests: Requests,
    /// When the next pass is due.
    next: Option<Duration>,
}

/// The number of requests of each kind.
#[derive(Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Requests(BTreeMap<String, usize>);

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let kinds: Vec<_> = self.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        f.write_str(&kinds.join(", "))
    }
}

impl Requests {
    fn count(&mut self, request: &Request) {
        let kind = match request {
            Request::ReadLogs(_) => "logs".to_owned(),
            Request::ListPods(..) => "pods of nodes".to_owned(),
            Request::Write(write) => format!("{}.{:?}", write.target.kind.as_str(), write.target.part),
        };
        *self.0.entry(kind).or_default() += 1;
    }
}

impl Operator {
    /// Makes a pass as the operator's loop does. The simulator's own work is not measured.
    pub fn pass(&mut self, sim: &mut Sim) -> Result<Measured> {
        self.mirrors.list(&sim.world());
        let started = Stopwatch::start()?;
        let observed = self.mirrors.world().context("not all kinds have been listed")?;
        let world = started.elapsed()?;
        let (mut pass, first) = Pass::begin(observed, sim.now, &mut sim.around(&mut self.memory, self.uptime));
        let mut planned = started.elapsed()?;
        let (mut queue, mut requests) = (VecDeque::from(first), Requests::default());
        while let Some(request) = queue.pop_front() {
            requests.count(&request);
            let answer = match request {
                Request::Write(write) => {
                    sim.write(&write).map_err(|error| anyhow!("{write}: {error}"))?;
                    Answer::Written(write, Ok(()))
                }
                question => sim.read(&question),
            };
            let is_planned = pass.plan().is_some();
            let started = Stopwatch::start()?;
            queue.extend(pass.step(answer, &mut sim.around(&mut self.memory, self.uptime)));
            if !is_planned {
                planned += started.elapsed()?;
            }
        }
        let next = pass.next(&self.memory, self.uptime);
        Ok(Measured { world, planned, requests, next })
    }

    /// Makes passes until nothing is left to do.
    pub fn settle(&mut self, sim: &mut Sim) -> Result<()> {
        let mut last = Requests::default();
        for _ in 0..PASSES {
            let Measured { requests, next, .. } = self.pass(sim)?;
            let next = next.filter(|next| *next < SOON);
            if requests.0.is_empty() && next.is_none() {
                return Ok(());
            }
            let pause = next.filter(|_| requests.0.is_empty()).unwrap_or_default();
            self.sleep(sim, pause.as_secs() + 1)?;
            last = requests;
        }
        bail!("the fleet does not settle; the last requests: {last}")
    }

    pub fn sleep(&mut self, sim: &mut Sim, seconds: u64) -> Result<()> {
        self.uptime += Duration::from_secs(seconds);
        sim.sleep(seconds.try_into()?);
        Ok(())
    }
}

/// Mirrors of the kinds that the operator watches. They keep what has not changed, and show it as the operator's mirrors do.
#[derive(Default)]
struct Mirrors {
    policies: Mirror<ClusterGpuPolicy, PolicyName>,
    nodes: Mirror<NodeFacts, NodeName>,
    gpu_nodes: Mirror<GpuNode, NodeName>,
    daemon_sets: Mirror<DaemonSetFacts>,
    foreign_sets: Mirror<ForeignSet>,
    foreign_pods: Mirror<ForeignPod>,
    pods: Mirror<PodFacts, String, CopyOnWrite<Pods>>,
    refusals: Mirror<Refusal>,
    runtime_classes: Mirror<RuntimeClassFacts>,
    gpu_slices: Mirror<GpuSlice>,
}

impl Mirrors {
    fn list(&mut self, world: &World) {
        list(&mut self.policies, &world.policies);
        list(&mut self.gpu_nodes, &world.gpu_nodes);
        list(&mut self.nodes, &world.nodes);
        list(&mut self.daemon_sets, &world.daemon_sets);
        list(&mut self.foreign_sets, &world.foreign_sets);
        list(&mut self.foreign_pods, &world.foreign_pods);
        list(&mut self.pods, world.pods.values().map(|pod| (&pod.name, pod)));
        list(&mut self.refusals, &world.refusals);
        list(&mut self.runtime_classes, &world.runtime_classes);
        list(&mut self.gpu_slices, &world.gpu_slices);
    }

    fn world(&self) -> Option<World> {
        Some(World {
            policies: self.policies.facts()?,
            nodes: self.nodes.facts()?,
            gpu_nodes: self.gpu_nodes.facts()?,
            daemon_sets: self.daemon_sets.facts()?,
            foreign_sets: self.foreign_sets.facts()?,
            foreign_pods: self.foreign_pods.facts()?,
            pods: self.pods.facts()?,
            refusals: self.refusals.facts()?,
            runtime_classes: self.runtime_classes.facts()?,
            gpu_slices: self.gpu_slices.facts()?,
            ..World::default()
        })
    }
}

fn list<'o, F, N, V>(mirror: &mut Mirror<F, N, V>, objects: impl IntoIterator<Item = (&'o N, &'o Arc<F>)>)
where
    F: Clone + PartialEq + 'o,
    N: Ord + Clone + 'o,
    V: View<F, N>,
{
    mirror.begin_list();
    for (name, fact) in objects {
        mirror.list(name.clone(), 0, F::clone(fact));
    }
    mirror.end_list();
}
