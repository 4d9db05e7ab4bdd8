//! The report: builds it from the facts, and writes it to this node's GpuNode.

pub mod announce;
pub mod build;
pub mod create;
pub mod gpu_node;
pub mod gpu_pods;
pub mod publish;
