//! Diagnosis of pods: finds the mistakes that keep pods from getting the GPUs they need, from their specs and from the state of
//! the fleet. These are pure functions of plain facts: the caller watches, reads Events and publishes the findings.
//!
//! A false alarm is worse than silence: only certain findings are reported.

mod class_not_named;
mod cuda;
mod diagnosis;
mod driver_paths;
mod finding;
mod fleet;
mod host_driver;
mod journal;
mod legacy;
mod not_requested;
mod pending;
mod refused;
mod runtime_handler;
mod scheduling;
mod symptoms;
mod verdict;

pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Finding, Mistake, NO_PLACE_GRACE, PodEvent, START_GRACE};
pub use journal::Journal;
pub use pending::{Container, DriverMount, PendingPod, Requirements, State};
pub use refused::{Fault, RefusedPods};
pub use symptoms::Symptoms;

#[cfg(test)]
mod tests;
