//! Running work is not disturbed: laws of rollouts in fleets to which everything happens that happens to fleets. They are checked at every
//! write and after every second, by what is true and by what was true before, and not by what the operator has concluded.

mod deadlines;
mod event;
mod evictions;
mod failures;
mod fleet;
mod history;
mod idle;
mod memory;
mod policy;
mod proven;
mod search;
mod selectors;
mod waits;

use event::Event;
use fleet::Fleet;
use history::History;
use policy::{NEW, OLD, Policy};

use crate::{law::Lawful, sim::Sim};
use gpu_operator_plan::output::write::Write;

/// A law, given what has happened so far.
#[derive(Clone, Copy)]
struct Law {
    at_write: fn(&History, &Sim, &Write) -> Lawful,
    after_step: fn(&History, &Sim) -> Lawful,
}

impl Law {
    const NONE: Self = Self { at_write: |_, _, _| Ok(()), after_step: |_, _| Ok(()) };
}

/// The laws that the random search checks.
const LAWS: &[Law] = &[
    BUDGETS,
    deadlines::NO_SLOT_BEYOND_ITS_DEADLINE,
    evictions::NOTHING_IN_VAIN,
    failures::ONLY_FAILURES_COUNT,
    idle::IDLE_GPUS,
    memory::WHAT_STOPPED_STAYS_STOPPED,
    proven::ONLY_PROVEN_DRIVERS,
    selectors::A_MINUTES_GRACE,
    waits::THE_LAST_ANSWER,
];

/// What holds without any history.
const BUDGETS: Law = Law {
    at_write: |_, sim, write| crate::law::holds(sim, write),
    after_step: |_, sim| {
        crate::law::of_budgets(sim)?;
        crate::law::of_allocation(sim)?;
        crate::law::of_records(sim)
    },
};
