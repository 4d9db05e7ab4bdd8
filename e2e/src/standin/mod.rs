//! The stand-ins for GPUs, driver and NVML, as the harness and the tests control them.

pub mod faults;
pub(crate) mod folder;
pub(crate) mod gpu;
pub(crate) mod module_references;
mod pci;
pub(crate) mod unanswered;

pub use self::{
    folder::{DriverMode, Standin},
    gpu::Gpu,
};
