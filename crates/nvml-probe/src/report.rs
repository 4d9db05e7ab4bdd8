//! The report: builds it from the facts, and writes it to this node's GpuNode.

pub mod build;
pub mod gpu_node;
