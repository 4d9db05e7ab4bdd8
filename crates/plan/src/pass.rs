//! One pass of the reconcile loop without I/O: what to read, what to write and in which order. The loop and the tests carry out its
//! requests.

mod planning;
mod request;
mod writing;

use std::{sync::Arc, time::Duration};

use k8s_openapi::jiff::Timestamp;

pub use planning::Planning;
pub use request::{Answer, PassContext, Request};
pub use writing::Writing;

use crate::{
    loop_memory::LoopState,
    output::write::{Plan, Write},
    time::Uptime,
    world::World,
};

#[derive(Clone, Debug)]
pub struct Pass {
    now: Timestamp,
    /// The plan's age counts from then.
    observed: Uptime,
    state: State,
}

#[derive(Clone, Debug)]
enum State {
    Planning(Box<Planning>),
    Writing(Box<Plan>, Writing),
}

impl Pass {
    /// The world was observed at `now`.
    pub fn begin(mut world: World, now: Timestamp, around: &mut PassContext<'_>) -> (Self, Vec<Request>) {
        around.carry.annotate(&mut world, around.uptime);
        let planning = Planning::begin(world, now, around);
        let mut pass = Self { now, observed: around.uptime, state: State::Planning(Box::new(planning)) };
        let requests = pass.go_on(around);
        (pass, requests)
    }

    pub fn carry_out(plan: Plan, world: &World, now: Timestamp, around: &mut PassContext<'_>) -> (Self, Vec<Request>) {
        let (state, requests) = write(plan, world, around.uptime, around);
        (Self { now, observed: around.uptime, state }, requests)
    }

    pub fn step(&mut self, answer: Answer, around: &mut PassContext<'_>) -> Vec<Request> {
        match &mut self.state {
            State::Planning(planning) => {
                planning.answer(answer, around);
                self.go_on(around)
            }
            State::Writing(_, writing) => writing.answer(answer, around.carry, around.uptime),
        }
    }

    fn go_on(&mut self, around: &mut PassContext<'_>) -> Vec<Request> {
        let State::Planning(planning) = &mut self.state else { return Vec::new() };
        if let Some(question) = planning.next(around) {
            return vec![question];
        }
        let (plan, world) = planning.take();
        let (state, requests) = write(plan, &world, self.observed, around);
        self.state = state;
        requests
    }

    /// The writes have been taken out of it.
    pub fn plan(&self) -> Option<&Plan> {
        match &self.state {
            State::Planning(_) => None,
            State::Writing(plan, _) => Some(plan),
        }
    }

    fn writing(&self) -> Option<&Writing> {
        match &self.state {
            State::Planning(_) => None,
            State::Writing(_, writing) => Some(writing),
        }
    }

    pub fn outstanding(&self) -> Vec<Arc<Write>> {
        self.writing().into_iter().flat_map(Writing::outstanding).cloned().collect()
    }

    pub fn later(&self) -> Vec<Arc<Write>> {
        self.writing().into_iter().flat_map(Writing::later).cloned().collect()
    }

    /// The time from which on no more writes are begun; the next pass plans them again.
    pub fn begins_until(&self) -> Option<Uptime> {
        self.writing().map(Writing::begins_until)
    }

    /// Answered or not.
    pub fn ends(&self) -> Option<Uptime> {
        self.writing().map(Writing::until)
    }

    /// Returns `None` if there is nothing to wait for.
    pub fn next(&self, carry: &LoopState, uptime: Uptime) -> Option<Duration> {
        let check = self.plan().and_then(|plan| plan.check_again);
        let check = check.map(|at| Duration::try_from(at.duration_since(self.now)).unwrap_or_default());
        // At least a second: a time that has already passed is handled by the plan of the next second.
        let check = check.map(|check| check.max(Duration::from_secs(1)));
        [check, carry.next(uptime)].into_iter().flatten().min()
    }
}

/// The world was observed at this time.
fn write(mut plan: Plan, world: &World, observed: Uptime, around: &mut PassContext<'_>) -> (State, Vec<Request>) {
    let steps = around.carry.begin(&mut plan, world, around.uptime);
    let (writing, requests) = Writing::begin(steps, observed, plan.has_waiting_pods, around.carry, around.uptime);
    (State::Writing(Box::new(plan), writing), requests)
}
