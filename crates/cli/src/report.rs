//! What policies would do to the objects of a cluster.

use gpu_operator_crd::ClusterGpuPolicy;
use gpu_operator_plan::{
    catalogue::{Catalogue, CatalogueError},
    forecast::{Forecast, Inputs, forecast},
};
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::objects::Objects;

/// The forecasts, as they are printed.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What each policy would do.
    pub policies: Vec<Forecast>,
    /// What is not known, as messages.
    pub notes: Vec<String>,
}

/// Returns what these policies would do if they were applied now.
pub fn report(objects: &Objects, policies: &[ClusterGpuPolicy], now: Timestamp) -> Result<Report, CatalogueError> {
    let catalogue = Catalogue::builtin()?;
    let (settings, note) = objects.settings();
    let (world, budgets) = (objects.world(), &objects.budgets);
    let inputs = Inputs { settings: &settings, catalogue: &catalogue, world: &world, budgets, now };
    let notes = objects.notes.iter().cloned().chain(note).collect();
    Ok(Report { policies: forecast(inputs, policies), notes })
}
