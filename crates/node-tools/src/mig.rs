//! MIG layouts: plans and applies the steps that partition a node's GPUs as requested by its policy.

pub mod apply;
pub mod plan;
