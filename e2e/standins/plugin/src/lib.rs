//! The stand-in device plugin. To the kubelet and the container runtime it behaves as NVIDIA's plugin.
//!
//! It lists the GPUs that the NVML library in the driver root reports, keeps that library initialised, registers the
//! GPUs as `nvidia.com/gpu` or under the name of shared GPUs, and answers allocations with CDI devices from a
//! specification that it writes, or with environment variables.

pub mod api;
mod cdi;
mod gpus;
mod kubelet;
mod offer;
mod run;
mod service;

pub use gpus::Gpu;
pub use kubelet::serve;
pub use offer::{Config, HandOver, Offer, RESOURCE};
pub use run::{run, run_as_googles};
