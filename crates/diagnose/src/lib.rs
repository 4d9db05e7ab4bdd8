//! Diagnosis of a pod: finds the mistakes that keep it from getting the GPUs it needs, from its spec, its Events and the state of the
//! fleet. These are pure functions: the caller reads the objects.
//!
//! A false alarm is worse than silence: only certain findings are reported.

mod cuda;
mod diagnosis;
mod finding;
mod fleet;
mod mistakes;
mod not_started;
mod pending;
mod scheduling;

pub use diagnosis::{Diagnosis, diagnose};
pub use finding::{Finding, Mistake};

#[cfg(test)]
mod tests;
