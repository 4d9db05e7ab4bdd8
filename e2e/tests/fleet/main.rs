//! Tests with a fleet of simulated nodes: a real API server, controller manager and scheduler, the real operator as a process
//! with the rights of its service account, and an agent that acts as kubelet and probe on every node.
#![allow(clippy::expect_used, clippy::panic, reason = "tests")]

mod history;
mod install;
mod leader;
mod newer;
mod removal;
mod rollout;
mod rollout_budgets;
mod startup_taints;
mod support;
mod systems;
mod two_hundred;
