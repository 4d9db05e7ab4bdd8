//! Helpers in the pods of the operands: device nodes, drivers in containers, and files for other containers.

pub mod device_nodes;
pub mod inject;
pub mod unpack;
pub mod write_file;
