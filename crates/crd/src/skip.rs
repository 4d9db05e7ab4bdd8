//! Which values are left out of serialized objects.

/// Returns whether a field has its default value, and is therefore not serialized.
pub fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
