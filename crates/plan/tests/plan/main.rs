//! Tests of the plan, on plain data and on a simulated cluster ([`test_support::sim`]).
#![allow(missing_docs, clippy::expect_used, clippy::panic, reason = "tests")]

mod clocks;
mod coexistence;
mod columns;
mod drift;
mod driver_down;
mod examples;
mod foreign_input;
mod gfd;
mod gitops;
mod golden;
mod health;
mod holders;
mod image_list;
mod install;
mod labels;
mod law;
mod leaving;
mod messages;
mod mig;
mod mixed;
mod pace;
mod passes;
mod properties;
mod refused_policies;
mod repairs;
mod reports;
mod reviewed;
mod robust;
mod rollout;
mod schedules;
mod schema_sweep;
mod schemas;
mod sharing;
mod sources;
mod states;
mod stray_labels;
mod toolkit;
mod truth;
mod unanswered;
mod unreadable;
mod validation;

use test_support::sim;
