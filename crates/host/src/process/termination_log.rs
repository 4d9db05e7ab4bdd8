//! Writes the termination log of a container.

use std::{fs, path::Path};

/// Writes the text that Kubernetes shows once the container has ended.
pub fn write_termination_log(termination_log: &Path, text: &str) {
    if let Err(error) = fs::write(termination_log, text) {
        tracing::debug!(%error, "cannot write {}", termination_log.display());
    }
}
