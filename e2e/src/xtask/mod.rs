//! The commands of `cargo xtask`.

pub mod cli;
mod demo;
mod leftovers;
mod picture;
mod simulate;
pub mod test_failures;
mod test_run;
