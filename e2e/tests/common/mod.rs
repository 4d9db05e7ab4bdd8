//! Helpers for tests without a cluster: hosts for the probe, and the API server that receives its reports.

mod api;
pub mod host;
