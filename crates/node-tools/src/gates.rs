//! The gates that a stage's pod passes before its containers start.

pub mod guard;
pub mod nouveau;
pub mod previous_container;
pub mod shown_root;
pub mod status;
pub mod wait;
