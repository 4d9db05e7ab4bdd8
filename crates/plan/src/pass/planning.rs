//! The first half of a pass: plan, read what the plan asks for, and plan again until nothing is asked.

use std::{collections::BTreeSet, mem::take};

use k8s_openapi::jiff::Timestamp;

use super::request::{Answer, Around, Request};
use crate::{
    output::plan::Plan,
    plan::plan,
    world::{GpuAsks, World},
};

/// The maximum number of logs that are read in one pass. If there are more, each pass reads different ones.
const MAX_LOGS: usize = 32;

/// A plan in the making.
#[derive(Clone, Debug)]
pub struct Planning {
    world: World,
    now: Timestamp,
    asks: GpuAsks,
    plan: Plan,
    /// Whether logs are still to be asked for. They are read once in a pass, so that nodes that do not answer delay it once.
    reads_logs: bool,
}

impl Planning {
    /// Plans for this world.
    #[must_use]
    pub fn begin(world: World, now: Timestamp, around: &Around<'_>) -> Self {
        let plan = plan(around.settings, around.catalogue, &world, now);
        Self { asks: world.gpu_asks(), world, now, plan, reads_logs: true }
    }

    /// Returns the next question, or `None` if the plan is ready.
    pub fn next(&mut self, around: &mut Around<'_>) -> Option<Request> {
        let asked = take(&mut self.plan.questions.log_tails);
        if self.reads_logs && !asked.is_empty() {
            self.reads_logs = false;
            // The errors of recent attempts are known.
            let known = around.carry.unreadable(&asked, around.uptime);
            let unknown: BTreeSet<_> = asked.into_iter().filter(|pod| !known.contains_key(pod)).collect();
            self.world.log_tails.extend(known);
            if !unknown.is_empty() {
                return Some(Request::ReadLogs(self.some_of(&unknown)));
            }
            self.plan(around);
        }
        // Each round asks for the next few nodes of every pool, and for no node twice. If their pods cannot be listed, the plan stays
        // as it is.
        let nodes = take(&mut self.plan.questions.gpu_pods);
        (!nodes.is_empty()).then(|| Request::ListPods(nodes, self.asks.clone()))
    }

    /// Takes the answer to a question.
    pub fn answer(&mut self, answer: Answer, around: &mut Around<'_>) {
        match answer {
            Answer::Logs(tails) => {
                around.carry.read(&tails, around.uptime);
                self.world.log_tails.extend(tails);
                self.plan(around);
            }
            Answer::Pods(Some(pods)) => {
                self.world.gpu_pods.extend(pods);
                self.plan(around);
            }
            Answer::Pods(None) | Answer::Slow(_) | Answer::Written(..) => {}
        }
    }

    /// Takes the plan, and the world that it was made for.
    #[must_use]
    pub fn take(&mut self) -> (Plan, World) {
        (take(&mut self.plan), take(&mut self.world))
    }

    fn plan(&mut self, around: &Around<'_>) {
        self.plan = plan(around.settings, around.catalogue, &self.world, self.now);
    }

    /// Returns as many pods as are read in one pass, in rotation.
    fn some_of(&self, pods: &BTreeSet<String>) -> BTreeSet<String> {
        let turn = usize::try_from(self.now.as_second()).unwrap_or_default() * MAX_LOGS % pods.len();
        pods.iter().cycle().skip(turn).take(MAX_LOGS.min(pods.len())).cloned().collect()
    }
}
