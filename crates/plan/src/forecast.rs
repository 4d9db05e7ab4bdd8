//! The forecast: what would happen if policies were applied, before they are. It is the plan of the operator, computed again and again:
//! what it begins is taken to end well at once ([`ending`]), and where it waits for a time, that time is taken to come ([`course`]). So
//! it reports which nodes are updated, in which order and at the expense of which pods, but not how long that takes.
//!
//! Pods that are evicted start again on other nodes, whose turn may come later: the forecast counts pods where they run now.

mod budgets;
mod changes;
mod course;
mod ending;
mod inputs;
mod result;

use gpu_operator_crd::ClusterGpuPolicy;

pub use budgets::DisruptionBudget;
pub use inputs::Inputs;
pub use result::{Forecast, Outcome, PodOutcome, Problem, StageChange, Update, Waiting};

/// Returns what would happen if these policies were applied, each in place of the one of its name.
pub fn forecast(inputs: Inputs<'_>, policies: &[ClusterGpuPolicy]) -> Vec<Forecast> {
    let before = ending::observed(inputs);
    let after = ending::with_policies(&before, policies, inputs.now);
    let first = changes::first(inputs, &before, &after);
    let mut forecasts = course::follow(inputs, first.world.clone(), policies);
    for forecast in &mut forecasts {
        changes::add(forecast, &first, &after);
    }
    forecasts
}
