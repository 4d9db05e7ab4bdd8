//! `kubectl gpu-fleet explain`.

pub mod reasons;
