//! Real nodes: container runtime and kubelet in namespaces of their own, over a copy-on-write view of the machine's root.

pub mod cgroups;
pub mod containerd;
pub mod control;
mod docker;
pub(crate) mod image_import;
mod kubelet;
pub(crate) mod namespaces;
pub mod real_node;
mod root;
pub mod runtime;
