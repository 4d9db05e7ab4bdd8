//! Interned strings: strings that thousands of objects share, such as label keys and node names, are stored once.

use std::{
    borrow::Borrow,
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
};

use serde::{Deserialize, Serialize};
use string_cache::DefaultAtom;

/// An interned string. The nodes of a fleet have the same labels over and over: interned, each costs a pointer. A string is
/// freed with its last user.
#[derive(Serialize, Deserialize, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
#[serde(transparent)]
pub struct Interned(DefaultAtom);

impl Interned {
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Interned {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Maps are searched by `&str`, which an atom does not support: its hash is not that of the string.
impl Borrow<str> for Interned {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Hash for Interned {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl<T: AsRef<str>> From<T> for Interned {
    fn from(text: T) -> Self {
        Self(text.as_ref().into())
    }
}

impl<T: AsRef<str> + ?Sized> PartialEq<T> for Interned {
    fn eq(&self, other: &T) -> bool {
        self.as_str() == other.as_ref()
    }
}

impl fmt::Display for Interned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl fmt::Debug for Interned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_stored_once_for_a_pointer_each() {
        let (one, other) =
            (Interned::from("topology.kubernetes.io/zone"), "topology.kubernetes.io/zone".to_owned().into());
        assert_eq!(one.as_ptr(), Interned::as_str(&other).as_ptr());
        assert_eq!(size_of::<Option<Interned>>(), size_of::<usize>());
    }
}
