//! Commands for people who operate GPU fleets: the kubectl plugin `kubectl gpu-fleet` ([`fleet`]).

pub mod bundle;
pub mod check;
pub mod context;
pub mod explain;
pub mod fleet;
pub mod images;
pub mod import;
pub mod objects;
pub mod output;
pub mod plan;
pub mod policy_file;
pub mod read;
pub mod report;
pub mod status;
#[cfg(test)]
mod testing;
