//! Decides what is written to a cluster: one pure function over plain facts, without I/O, clock or client.
//!
//! ```text
//! inventory ─▶ desired ─▶ assess ─▶ rollout ─▶ output
//!    who         what     how far   whose turn   writes
//!                                      manifests ─┘ objects
//! ```
//!
//! Every step may use [`catalogue`] and [`world`] (the facts), [`settings`], [`pool_settings`], [`time`], [`note`],
//! [`revision`], [`container_names`] and [`ground`] (what all nodes share). Otherwise a step uses only the steps before it.
//!
//! What is settled is planned only once: [`memo`] keeps its [`summary`] until one of its facts changes.
//!
//! [`forecast`] reports what would happen if a policy were applied: the steps above, computed repeatedly.
//!
//! The loop around the plan is as pure: a [`pass`] requests what to read and what to write, and [`loop_memory`] is what
//! one pass leaves for the next.

pub mod assess;
pub mod catalogue;
pub mod clock;
pub mod container_names;
pub mod desired;
pub mod forecast;
pub mod ground;
pub mod image_list;
pub mod inventory;
pub mod loop_memory;
pub mod manifests;
pub mod memo;
pub mod note;
pub mod output;
pub mod pass;
mod plan;
pub mod pool_settings;
pub mod quiet;
pub mod revision;
pub mod rollout;
pub mod settings;
mod sorted;
pub mod summary;
pub mod time;
pub mod world;

pub use output::write::Plan;
pub use plan::plan;
