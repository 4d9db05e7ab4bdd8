//! How many writes the operator makes for a node, from the bare GpuNode of the detector until the node is ready.

use std::collections::{BTreeMap, VecDeque};

use gpu_operator_crd::{Phase, reason::Reason, report::VirtualGpus};
use gpu_operator_plan::{
    loop_memory::LoopState,
    output::{
        body::{Body, Kind, Part},
        write::{Urgency, Write},
    },
    pass::{Answer, Pass, Request},
    time::Uptime,
};

use test_support::planned::Planned;

use crate::sim::{Faults, Sim};

const NODE: &str = "new";

/// The operator's loop, with a pass in each second.
struct Watched {
    sim: Sim,
    carry: LoopState,
    up: u64,
    /// By kind and part.
    writes: BTreeMap<(Kind, Part), u32>,
    /// The seconds in which the status does not show what is true of the node.
    behind: u64,
}

impl Watched {
    fn new() -> Self {
        Self { sim: Sim::new(), carry: LoopState::default(), up: 0, writes: BTreeMap::new(), behind: 0 }
    }

    fn run(&mut self, seconds: u64) {
        for _ in 0..seconds {
            let _ = self.sim.pass(&mut self.carry, Uptime::from_secs(self.up));
            let made = self.sim.plans.last().map(|plan| plan.writes.as_slice()).unwrap_or_default();
            for write in made.iter().filter(|write| write.target.name == NODE) {
                println!("{:>4} s: {write}", self.up);
                *self.writes.entry((write.target.kind, write.target.part)).or_default() += 1;
            }
            let is_hidden = |write: &Write| write.target.part == Part::Status && write.urgency != Urgency::Detail;
            let planned = self.sim.plan();
            let is_behind = planned.writes.iter().any(|write| write.target.name == NODE && is_hidden(write));
            self.behind = if is_behind { self.behind + 1 } else { 0 };
            // It is counted from the labels, which are written in the first of these seconds.
            assert!(self.behind <= 11, "at {} s: {:?}", self.up, planned.node_statuses());
            self.up += 1;
            self.sim.sleep(1);
        }
    }
}

/// When the policy is applied.
#[derive(Clone, Copy, Debug)]
enum Policy {
    Before,
    /// While the probe of the node starts.
    Soon,
    /// Once it has been shown that no policy governs the node.
    Later,
}

#[test]
fn a_node_costs_one_write_for_each_state_that_lasts() {
    // The seconds that each pod takes, and the statuses: that there is no policy, of a stage each, and that the node is ready.
    for (policy, seconds, statuses) in [
        (Policy::Before, 0_u32, 1),
        (Policy::Soon, 0, 1),
        (Policy::Later, 0, 2),
        (Policy::Before, 2, 1),
        (Policy::Later, 2, 2),
        (Policy::Before, 120, 4),
        (Policy::Later, 120, 5),
    ] {
        println!("policy {policy:?}, {seconds} s per pod");
        let mut watched = Watched::new();
        watched.sim.faults.insert(NODE.into(), Faults { slow: seconds.into(), ..Faults::default() });
        if let Policy::Before = policy {
            watched.sim.apply_policy("all", "{}");
            watched.run(20);
        }
        watched.sim.join_silent(NODE, &["2330"; 8]);
        watched.run(5);
        if let Policy::Soon = policy {
            watched.sim.apply_policy("all", "{}");
        }
        watched.run(15);
        if let Policy::Later = policy {
            assert_eq!(watched.sim.status(NODE).reason(), Some(Reason::NoPolicy));
            watched.sim.apply_policy("all", "{}");
        }
        watched.run(40 + 3 * u64::from(seconds));
        assert_eq!(watched.sim.status(NODE).phase, Phase::Ready);
        let expected = BTreeMap::from([
            // With its owner.
            ((Kind::GpuNode, Part::Object), 1),
            ((Kind::GpuNode, Part::Status), statuses),
            ((Kind::Node, Part::Presence), 1),
            ((Kind::Node, Part::Labels), 1),
        ]);
        assert_eq!(watched.writes, expected, "policy {policy:?}, {seconds} s per pod");
    }
}

#[test]
fn a_status_is_not_written_beside_the_record_of_its_node() {
    for is_slow in [false, true] {
        let mut sim = Sim::new().policy("all", "{}").gpu_node(NODE, "27b8", 1);
        // Its failure is reported at once.
        sim.report(NODE).vgpu = Some(VirtualGpus { present: true, ..VirtualGpus::default() });
        let mut carry = LoopState::default();
        let (mut pass, requests) = Pass::begin(sim.world(), sim.now, &mut sim.around(&mut carry, Uptime::ZERO));
        let (mut requests, mut made) = (VecDeque::from(requests), Vec::new());
        while let Some(Request::Write(write)) = requests.pop_front() {
            made.push((write.target.kind, write.target.part));
            let slow = is_slow && matches!(write.body, Body::Spec(_));
            let answer = if slow { Answer::Slow(write) } else { Answer::Written(write, Ok(())) };
            requests.extend(pass.step(answer, &mut sim.around(&mut carry, Uptime::ZERO)));
        }
        assert!(made.contains(&(Kind::GpuNode, Part::Object)), "{made:?}");
        assert_eq!(made.contains(&(Kind::GpuNode, Part::Status)), !is_slow, "{made:?}");
        assert!(made.contains(&(Kind::ClusterGpuPolicy, Part::Status)), "the pass goes on: {made:?}");
    }
}

#[test]
fn a_probe_that_was_just_brought_is_not_missing() {
    let mut watched = Watched::new();
    watched.sim.join_silent(NODE, &["2330"]);
    watched.sim.faults.insert(NODE.into(), Faults { no_probe: true, ..Faults::default() });
    // The operator starts long after the detector has created the GpuNode.
    watched.sim.detect(&NODE.into());
    watched.sim.sleep(600);
    watched.run(30);
    assert_eq!(watched.writes, BTreeMap::from([((Kind::Node, Part::Presence), 1)]));
    watched.run(60);
    assert_eq!(watched.sim.status(NODE).reason(), Some(Reason::ProbeMissing));
}
