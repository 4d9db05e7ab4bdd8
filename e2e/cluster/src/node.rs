//! Real nodes: container runtime and kubelet in namespaces of their own, over a copy-on-write view of the machine's root.

pub mod cgroups;
pub mod control;
mod kubelet;
pub(crate) mod namespaces;
pub mod real_node;
mod root;
pub mod runtime;
