//! A fleet under one operator, which remembers what its loop remembers. It passes from second to second; where nothing happens, to the next
//! moment for which the operator has set its clock.

use std::collections::BTreeSet;

use gpu_operator_crd::{NodeName, gpunode::RolloutStep, policy::Stage};
use gpu_operator_plan::{
    loop_memory::LoopState,
    output::body::Body,
    pass::Pass,
    time::Uptime,
    world::{GpuPod, PodFacts},
};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

use super::{
    Event, History, Law, Policy,
    event::{NODES, join},
};
use crate::{law::Lawful, sim::Sim, truth::pod};

/// The most that passes where nothing happens, because the laws are checked only then.
const AT_MOST: SignedDuration = SignedDuration::from_secs(300);

#[derive(Clone)]
pub struct Fleet {
    pub sim: Sim,
    pub policy: Policy,
    pub history: History,
    carry: LoopState,
    began: Timestamp,
    laws: &'static [Law],
    events: u32,
    /// Nodes to which the scheduler binds a pod as soon as an update takes their GPUs: the device plugin has not ended yet.
    late: BTreeSet<NodeName>,
}

impl Fleet {
    /// Returns a fleet of this many nodes whose policy has been complete for a quarter of an hour.
    pub fn settled(policy: Policy, nodes: usize, laws: &'static [Law]) -> Self {
        let mut sim = Sim::new().policy("all", &policy.yaml());
        for node in &NODES[..nodes] {
            join(&mut sim, node);
        }
        let (carry, began, late) = (LoopState::default(), sim.now, BTreeSet::new());
        let mut fleet = Self { sim, policy, history: History::default(), carry, began, laws: &[], events: 0, late };
        fleet.run(1200).expect("no law, no violation");
        for node in &NODES[..nodes] {
            assert!(fleet.sim.status(*node).is_ready(), "{:#?}", fleet.sim.status(*node));
        }
        fleet.laws = laws;
        fleet
    }

    /// Lets events happen, each for some seconds.
    pub fn go(&mut self, events: &[(Event, u32)]) -> Lawful {
        for (index, (event, seconds)) in events.iter().enumerate() {
            self.events += 1;
            match event {
                Event::PodComesLate(node) => drop(self.late.insert((*node).into())),
                Event::Recommends(_) => {
                    (self.carry, self.began) = (LoopState::default(), self.sim.now);
                    self.history.restarted = Some(self.sim.now);
                }
                _ => {}
            }
            event.happen(&mut self.sim, &mut self.policy, self.events);
            self.run(*seconds).map_err(|why| format!("{why}\nafter {:?}", &events[..=index]))?;
        }
        Ok(())
    }

    /// Lets this number of seconds pass.
    pub fn run(&mut self, seconds: u32) -> Lawful {
        let end = self.sim.now + SignedDuration::from_secs(seconds.into());
        while self.sim.now < end {
            let next = self.pass()?;
            self.sim.now = next.clamp(self.sim.now + SignedDuration::from_secs(1), end);
        }
        Ok(())
    }

    /// Runs one pass of the operator and of the cluster, and returns when the next one is due.
    fn pass(&mut self) -> Result<Timestamp, String> {
        self.history.observe(&self.sim, false);
        let Self { sim, history, carry, laws, .. } = self;
        let uptime: Uptime = sim.now.duration_since(self.began).unsigned_abs();
        let (pass, requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(carry, uptime));
        let (mut result, mut wrote) = (Ok(()), false);
        let pass = sim.drive(pass, requests, carry, uptime, |sim, write| {
            wrote = true;
            result = laws.iter().try_for_each(|law| (law.at_write)(history, sim, write));
            if result.is_ok()
                && let Err(why) = sim.write(write)
            {
                result = Err(format!("{write}: {why}"));
            }
            if matches!(write.body, Body::Eviction(_)) {
                history.evicts(sim, &write.target.name);
            }
            result.is_ok()
        });
        result.map_err(|why| format!("{}: {why}", sim.now))?;
        let due = pass.next(carry, uptime).and_then(|wait| SignedDuration::try_from(wait).ok());
        self.bind_late_pods();
        let happened = wrote | self.reboot_machines() | self.sim.surroundings();
        self.history.observe(&self.sim, true);
        let Self { sim, history, laws, .. } = self;
        let lawful = laws.iter().try_for_each(|law| (law.after_step)(history, sim));
        lawful.map_err(|why| format!("{}: {why}", sim.now))?;
        let wait = if happened { SignedDuration::ZERO } else { due.unwrap_or(AT_MOST).min(AT_MOST) };
        Ok(sim.now + wait)
    }

    fn bind_late_pods(&mut self) {
        for node in self.late.clone() {
            let has_plugin = pod(&self.sim, &node, Stage::DevicePlugin).is_some_and(PodFacts::running);
            let step = self.sim.gpu_nodes.get(&node).and_then(|node| Some(node.spec.rollout.as_ref()?.step));
            if has_plugin && step.is_some_and(|step| step != RolloutStep::Await) {
                self.events += 1;
                self.sim.start_gpu_pod(&node, &format!("team/late-{}", self.events), GpuPod::default());
                self.late.remove(&node);
            }
        }
    }

    /// Lets machines reboot whose driver does that.
    fn reboot_machines(&mut self) -> bool {
        let due = self.history.rebooting_machines(self.sim.now);
        for node in &due {
            self.sim.reboot(node, 0);
            self.history.rebooted(node);
        }
        !due.is_empty()
    }
}
