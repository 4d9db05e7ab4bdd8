//! What tests without a cluster have in common: hosts that the probe looks at, and where it reports to.

mod api;
pub mod host;
