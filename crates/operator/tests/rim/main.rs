//! The operator's writes and its loop, with its watches, against an API server in memory.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod admission;
mod check;
mod cluster;
mod election;
mod evictions;
mod faults;
mod observe;
mod passes;
mod plan;
mod schema;
mod uninstall;
mod writes;

use test_support::sim;
