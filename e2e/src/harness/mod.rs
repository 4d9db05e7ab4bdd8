//! Files, processes, programs and images on this machine; nothing in here knows a running cluster.

#[macro_use]
pub(crate) mod progress;

pub(crate) mod buildah;
pub(crate) mod cargo;
pub mod debian;
pub(crate) mod files;
pub(crate) mod images;
pub(crate) mod interrupts;
pub(crate) mod lock;
pub(crate) mod mounts;
pub(crate) mod node_id;
pub(crate) mod packages;
pub(crate) mod paths;
pub(crate) mod process;
pub(crate) mod records;
pub(crate) mod scratch;
pub(crate) mod tools;
pub mod usage;
pub mod wait;
