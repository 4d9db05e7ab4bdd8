//! The running cluster: a control plane, real nodes, and the operator's chart.

pub mod audit;
pub(crate) mod chart;
pub(crate) mod clients;
mod control_plane;
mod demo_machines;
pub(crate) mod diagnosis;
pub(crate) mod handle;
pub(crate) mod kwok;
pub(crate) mod lifecycle;
pub(crate) mod network;
pub(crate) mod node;
pub(crate) mod operator_process;
mod pki;
pub(crate) mod probe_process;
pub(crate) mod state;
