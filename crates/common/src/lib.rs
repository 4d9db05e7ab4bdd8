//! What the operator and the node agent (`nvml-probe`) share, beside the API in `gpu-operator-crd`.
//!
//! By default the crate is pure: no HTTP, no asynchronous runtime, no Kubernetes client. The feature `admin` adds the HTTP
//! endpoints.

#[cfg(feature = "admin")]
pub mod admin;
pub mod copy_on_write;
pub mod interned;
pub mod mig_layout;
pub mod mirror;
pub mod quantity;
pub mod text;
pub mod version;
