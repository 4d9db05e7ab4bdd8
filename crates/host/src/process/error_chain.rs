//! Formats errors with their causes.

/// Returns an error with all its causes on one line.
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        // Some errors include their cause in their own text.
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
    fn each_cause_of_an_error_is_included_once() {
        let error = CannotStart(std::io::Error::other("why"));
        assert_eq!(error_chain(&error), "cannot start: why");
    }
}
