//! The stand-ins for GPUs, driver and NVML, as the harness and the tests control them.

pub mod folder;
pub mod gpu;
pub mod module_references;
mod pci;
pub mod unanswered;

pub use self::{
    folder::{DriverMode, Standin},
    gpu::Gpu,
};
