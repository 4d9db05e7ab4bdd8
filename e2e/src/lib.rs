//! What the end-to-end tests without a cluster share: hosts for the probe, and the API server that receives its reports.
#![allow(clippy::expect_used, clippy::missing_panics_doc, clippy::must_use_candidate, reason = "fails like a test")]

mod api;
pub mod host;
