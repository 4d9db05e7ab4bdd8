//! Real nodes: containerd and kubelet in namespaces of their own, over a copy-on-write view of the machine's root.

pub(crate) mod cgroups;
pub(crate) mod containerd;
pub(crate) mod control;
pub(crate) mod image_import;
mod kubelet;
pub(crate) mod namespaces;
pub(crate) mod real_node;
mod root;
