//! MIG layouts: plans and applies the steps that partition a node's GPUs as its policy says.

pub mod apply;
pub mod plan;
