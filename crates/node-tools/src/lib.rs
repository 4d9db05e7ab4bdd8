//! What the pods of drivers, toolkits and device plugins run on a node: gates that make the pods of one stage wait for the stage
//! before, MIG layouts, and the configuration of the container runtime.
//!
//! The modules in the order of their dependencies; each one uses only those above it:
//!
//! | Module | Content |
//! |---|---|
//! | [`mig`] | MIG layouts: planned (pure) and applied |
//! | [`runtime`] | NVIDIA's entries in the container runtime's configuration: recorded, loaded, watched, removed |
//! | [`gates`] | `wait`, `guard` and `unload-nouveau`: what a container waits for before it starts |
//! | [`operands`] | `device-nodes`, `inject`, `unpack` and `write`: helpers in the pods of the operands |
//! | [`cli`] | the subcommands, which are part of the program `nvml-probe` |
//!
//! Only three parts write to the host: [`runtime`], in the toolkit's pod, and [`operands::device_nodes`] and
//! [`gates::wait`], in the driver's pod. Only [`mig`], in the device plugin's pod, changes a GPU.

pub mod cli;
pub mod gates;
pub mod mig;
pub mod operands;
pub mod runtime;
