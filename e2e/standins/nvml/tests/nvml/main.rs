//! The stand-in library: its behaviour without the C interface, and the shared object, loaded as the product loads NVIDIA's.
#![allow(clippy::unwrap_used, clippy::expect_used)] // helpers of tests are tests too

mod driver_root;
mod library;
mod loaded;
mod unanswered;
