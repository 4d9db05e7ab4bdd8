//! The steps of the programs of a cluster.

use super::store::Kind;

/// A step of one program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The next event of a kind reaches the operator.
    Deliver(Kind),
    /// The operator observes, plans, and begins to carry out the plan.
    Plan,
    /// The API server answers one of the writes that are being made, counted from the first.
    Write(usize, Fault),
    /// A write whose answer the operator did not wait for is carried out.
    Late,
    /// The operator is killed, and another one lists everything.
    Kill,
    /// The operator pauses, possibly in the middle of a pass, and another one that has paused goes on.
    Switch,
    /// The DaemonSet controller, kubelet or the probe of a node takes a step.
    Controller(usize),
    Kubelet(usize),
    Probe(usize),
    /// The next event of the scenario happens.
    Event,
    /// Nothing happens until the operator plans to write something.
    Wait,
}

/// What goes wrong with a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The API server rejects it.
    Rejected,
    /// It is carried out, but the answer is lost.
    Unanswered,
    /// It is carried out later, when the operator waits for it no longer.
    Late,
    /// It is not answered yet, and the operator goes on with what does not depend on it.
    Slow,
}

/// How many more times something may happen.
#[derive(Clone, Copy, Debug, Default, Hash)]
pub struct Allowed {
    pub faults: u32,
    pub kills: u32,
    /// Switches between two operators, of which the paused one still believes to be the only one.
    pub switches: u32,
    /// The number of events that a watch may be behind.
    pub lag: usize,
}
