//! The gates that a stage's pod passes before its containers start.

pub mod nouveau;
pub mod wait;
