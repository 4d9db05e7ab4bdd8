//! Removal of credentials from everything that a support bundle contains. Nothing here reads or writes anything.

pub mod names;
pub mod object;
pub mod text;
