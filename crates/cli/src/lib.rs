//! Commands for people who operate GPU fleets. They read, and change nothing: [`images`] needs no cluster, and [`plan`] reads one, or files
//! that were exported from one.

pub mod images;
pub mod objects;
pub mod plan;
pub mod policy_file;
pub mod report;
mod text;
