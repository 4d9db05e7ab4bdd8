//! Interned strings: strings that thousands of objects share, such as label keys and node names, are stored once in the process.

use std::{
    borrow::Borrow,
    collections::HashSet,
    fmt,
    ops::Deref,
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};

/// An interned string. The nodes of a fleet have the same labels over and over: interned, each costs a pointer.
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
        POOL.lock().unwrap_or_else(PoisonError::into_inner).word(text)
    }
}

impl From<String> for Interned {
    fn from(text: String) -> Self {
        Self::from(text.as_str())
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
static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);

#[derive(Default)]
struct Pool {
    words: HashSet<Interned>,
    /// The number of strings at which unused ones are removed.
    limit: usize,
}

/// The minimum number of strings before unused ones are removed.
const FEW: usize = 4096;

impl Pool {
    /// Returns the interned string, shared by all users of the same text.
    fn word(&mut self, text: &str) -> Interned {
        if let Some(known) = self.words.get(text) {
            return known.clone();
        }
        if self.words.len() >= self.limit {
            self.words.retain(|word| Arc::strong_count(&word.0) > 1);
            self.limit = (2 * self.words.len()).max(FEW);
        }
        let word = Interned(Arc::new(text.into()));
        self.words.insert(word.clone());
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_strings_are_stored_once() {
        assert!(Arc::ptr_eq(&Interned::from("zone").0, &Interned::from("zone".to_owned()).0));
        assert!(!Arc::ptr_eq(&Interned::from("zone").0, &Interned::from("zones").0));
    }

    #[test]
    fn unused_strings_are_removed_eventually() {
        let mut pool = Pool::default();
        let kept = pool.word("kept");
        (0..3 * FEW).for_each(|number| drop(pool.word(&number.to_string())));
        assert!(pool.words.len() <= FEW + 1);
        assert!(Arc::ptr_eq(&kept.0, &pool.word("kept").0));
    }
}
