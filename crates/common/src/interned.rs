//! Interned strings: strings that thousands of objects share, such as label keys and node names, are stored once.

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    ops::Deref,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// An interned string, such as one from [`Interner`]. The nodes of a fleet have the same labels over and over: interned, each
/// costs a pointer.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(from = "String")]
pub struct Interned(#[serde(serialize_with = "as_str")] Arc<Box<str>>);

impl Interned {
    /// Returns the string.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn as_str<S: serde::Serializer>(word: &Arc<Box<str>>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(word)
}

impl Default for Interned {
    fn default() -> Self {
        Self::from("")
    }
}

impl Deref for Interned {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Interned {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Interned {
    fn from(text: &str) -> Self {
        Self(Arc::new(text.into()))
    }
}

impl From<String> for Interned {
    fn from(text: String) -> Self {
        Self(Arc::new(text.into()))
    }
}

impl From<&String> for Interned {
    fn from(text: &String) -> Self {
        Self::from(text.as_str())
    }
}

impl PartialEq<str> for Interned {
    fn eq(&self, other: &str) -> bool {
        self.as_str() == other
    }
}

impl PartialEq<&str> for Interned {
    fn eq(&self, other: &&str) -> bool {
        self.as_str() == *other
    }
}

impl PartialEq<String> for Interned {
    fn eq(&self, other: &String) -> bool {
        self.as_str() == other.as_str()
    }
}

impl fmt::Display for Interned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Interned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// The interned strings in use.
#[derive(Debug, Default)]
pub struct Interner {
    pool: Mutex<Pool>,
}

#[derive(Debug, Default)]
struct Pool {
    words: HashSet<Interned>,
    /// The number of strings at which unused ones are removed.
    limit: usize,
}

/// The minimum number of strings before unused ones are removed.
const FEW: usize = 4096;

impl Interner {
    /// Returns the interned string, shared by all users of the same text.
    #[must_use]
    pub fn word(&self, text: &str) -> Interned {
        let pool = &mut *self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = pool.words.get(text) {
            return known.clone();
        }
        if pool.words.len() >= pool.limit {
            pool.words.retain(|word| Arc::strong_count(&word.0) > 1);
            pool.limit = (2 * pool.words.len()).max(FEW);
        }
        let word = Interned::from(text);
        pool.words.insert(word.clone());
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_stored_once() {
        let words = Interner::default();
        assert!(Arc::ptr_eq(&words.word("zone").0, &words.word("zone").0));
        assert!(!Arc::ptr_eq(&words.word("zone").0, &words.word("zones").0));
    }

    #[test]
    fn unused_strings_are_removed_eventually() {
        let words = Interner::default();
        let kept = words.word("kept");
        (0..3 * FEW).for_each(|number| drop(words.word(&number.to_string())));
        assert!(words.pool.lock().unwrap().words.len() <= FEW + 1);
        assert!(Arc::ptr_eq(&kept.0, &words.word("kept").0));
    }
}
