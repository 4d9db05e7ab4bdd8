//! Facts of the host, without NVML.

pub mod cdi;
pub mod containerd;
pub mod device_nodes;
pub mod dockerd;
pub mod driver;
pub mod host_runtimes;
pub mod kernel_log;
pub mod loaded_runtimes;
pub mod os;
pub mod pci;
pub mod pod_resources;
pub mod processes;
pub mod selinux;
pub mod toolkit_folder;
pub mod vgpu;
