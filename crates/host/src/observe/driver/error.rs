//! The error of reading facts about the driver.

use std::io;

/// A fact about the driver that could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {what} of the NVIDIA driver")]
pub struct DriverError {
    what: &'static str,
    source: io::Error,
}

/// Returns a function that wraps an I/O error of reading `what`.
pub(super) fn unreadable(what: &'static str) -> impl FnOnce(io::Error) -> DriverError {
    move |source| DriverError { what, source }
}
