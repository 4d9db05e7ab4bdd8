//! Files, processes, programs and images on this machine; nothing in here knows a running cluster.
#![allow(clippy::new_without_default, reason = "what can fail here is the machine, and the errors have the details")]

#[macro_use]
pub mod progress;

pub mod buildah;
pub mod cargo;
pub mod debian;
pub mod files;
pub mod images;
pub mod interrupts;
pub mod licences;
pub mod lock;
pub mod mounts;
pub mod node_id;
pub mod packages;
pub mod paths;
pub mod process;
pub mod records;
pub mod scratch;
pub mod tools;
pub mod usage;
pub mod wait;
