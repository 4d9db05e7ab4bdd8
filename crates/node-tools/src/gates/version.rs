//! Compares driver versions.

/// Returns whether a loaded version equals the wanted one or is of the wanted branch, which is all that is known of a
/// precompiled driver.
pub(super) fn is_of(loaded: &str, wanted: &str) -> bool {
    loaded.strip_prefix(wanted).is_some_and(|rest| rest.is_empty() || !wanted.contains('.') && rest.starts_with('.'))
}
