//! Diagnosis of pods: finds the mistakes that keep pods from getting the GPUs they need, from their specs and from the state of
//! the fleet. These are pure functions of plain facts: the caller watches, reads Events and publishes the findings.
//!
//! A false alarm is worse than silence: only certain findings are reported.

mod cuda;
mod diagnosis;
mod finding;
mod fleet;
mod journal;
mod mistakes;
mod pending;
mod refused;
mod scheduling;

pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Finding, Mistake, NO_PLACE_GRACE, PodEvent, START_GRACE};
pub use journal::Journal;
pub use pending::{Container, DriverMount, PendingPod, Requirements, State, Symptoms};
pub use refused::{Fault, RefusedPods};

#[cfg(test)]
mod tests;
