//! Helpers in the pods of the operands: device nodes, drivers in containers, and files for other containers.

pub mod device_nodes;
pub mod files;
pub mod inject;
