//! What is said when something fails: an error's whole story, and a container's last words.

use std::{fs, path::Path};

/// What Kubernetes shows of a container once it has ended.
pub fn last_words(termination_log: &Path, text: &str) {
    if let Err(error) = fs::write(termination_log, text) {
        tracing::debug!(%error, "cannot write {}", termination_log.display());
    }
}

/// An error with everything that it stems from, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some print their cause themselves.
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot start")]
    struct CannotStart(#[source] std::io::Error);

    #[test]
    fn the_causes_of_an_error_are_said_once_each() {
        let error = CannotStart(std::io::Error::other("why"));
        assert_eq!(chain(&error), "cannot start: why");
    }
}
