//! The first half of a pass: plan, read what the plan asks for, and plan again until nothing is asked.

use std::{collections::BTreeSet, mem::take, time::Duration};

use k8s_openapi::jiff::Timestamp;

use super::request::{Answer, PassContext, Request};
use crate::{
    loop_memory::reads::{MAX_LISTS, is_updated},
    output::write::Plan,
    settings::ASK_AGAIN,
    time::Uptime,
    world::World,
};

/// In one pass; each reads different ones.
const MAX_LOGS: usize = 32;
/// Until the questions end, the operator reacts to nothing else.
const MAX_ASKING: Duration = Duration::from_secs(5);

#[derive(Clone, Debug)]
pub struct Planning {
    world: World,
    now: Timestamp,
    plan: Plan,
    /// Logs are read once in a pass, so that nodes that do not answer delay it only once.
    reads_logs: bool,
    /// Nodes whose pods may still be listed in this pass.
    lists_left: usize,
    /// Nodes in the last request to list pods.
    asked: usize,
    /// When the questions end.
    until: Uptime,
}

impl Planning {
    pub fn begin(world: World, now: Timestamp, around: &mut PassContext<'_>) -> Self {
        let (plan, until) = (Plan::default(), around.uptime + MAX_ASKING);
        let mut planning = Self { world, now, plan, reads_logs: true, lists_left: MAX_LISTS, asked: 0, until };
        planning.plan(around);
        planning
    }

    /// Returns `None` if the plan is ready.
    pub fn next(&mut self, around: &mut PassContext<'_>) -> Option<Request> {
        let asked = take(&mut self.plan.questions.log_tails);
        if self.reads_logs && !asked.is_empty() {
            self.reads_logs = false;
            // The errors of recent attempts are known.
            let known = around.carry.unreadable(&asked, around.uptime);
            let unknown: BTreeSet<_> = asked.into_iter().filter(|pod| !known.contains_key(pod)).collect();
            self.world.log_tails.extend(known);
            if !unknown.is_empty() {
                return Some(Request::ReadLogs(self.some_of(&unknown, MAX_LOGS)));
            }
            self.plan(around);
        }
        // Each round asks for the next few nodes of every pool, and for no node twice. If their pods cannot be listed, the plan stays
        // as it is.
        let nodes = take(&mut self.plan.questions.gpu_pods);
        let most = if around.uptime < self.until { self.lists_left } else { 0 };
        let asked = nodes.len();
        let (updated, waiting): (BTreeSet<_>, BTreeSet<_>) =
            nodes.into_iter().partition(|node| is_updated(&self.world, node));
        let mut now = self.some_of(&updated, most);
        now.extend(self.some_of(&waiting, around.carry.lists_left().min(most - now.len())));
        around.carry.postpone(asked - now.len());
        self.asked = now.len();
        self.lists_left -= now.len();
        (!now.is_empty()).then(|| Request::ListPods(now, self.world.gpu_requests()))
    }

    pub fn answer(&mut self, answer: Answer, around: &mut PassContext<'_>) {
        match answer {
            Answer::Logs(tails) => {
                around.carry.read(&tails, around.uptime);
                self.world.log_tails.extend(tails);
                self.plan(around);
            }
            Answer::Pods(pods) => {
                if pods.len() < self.asked {
                    self.lists_left = 0;
                }
                around.carry.listed(&pods, &self.world, around.uptime);
                self.world.gpu_pods.extend(pods);
                self.plan(around);
            }
            Answer::Slow(_) | Answer::Written(..) => {}
        }
    }

    pub fn take(&mut self) -> (Plan, World) {
        (take(&mut self.plan), take(&mut self.world))
    }

    fn plan(&mut self, around: &mut PassContext<'_>) {
        self.plan = around.carry.memo.0.plan(around.settings, around.catalogue, &self.world, self.now);
    }

    /// Returns other objects every [`ASK_AGAIN`]: until then, nodes that make progress are not left for others.
    fn some_of<T: Ord + Clone>(&self, objects: &BTreeSet<T>, most: usize) -> BTreeSet<T> {
        let round = u64::try_from(self.now.as_second()).unwrap_or_default() / ASK_AGAIN.as_secs();
        let turn = usize::try_from(round).unwrap_or_default().wrapping_mul(most) % objects.len().max(1);
        objects.iter().cycle().skip(turn).take(most.min(objects.len())).cloned().collect()
    }
}
