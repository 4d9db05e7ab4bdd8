//! What has been collected for a support bundle. Everything enters through [`Contents`], which removes credentials.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::redact::{object::object, text::text};
use crate::read::ReadError;

/// A file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The path in the bundle.
    pub path: String,
    /// The content, without credentials.
    pub content: String,
}

/// What a bundle does not contain, although it was asked for.
#[derive(Clone, Debug, Serialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct Absence {
    /// The path of the file, or what it would contain.
    pub what: String,
    /// Why it is not in the bundle.
    pub reason: String,
}

/// The contents of a bundle, the most important first.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    entries: Vec<Entry>,
    left_out: BTreeSet<Absence>,
    not_read: BTreeSet<Absence>,
}

/// The parts of [`Contents`].
#[derive(Debug)]
pub struct Parts {
    /// The files, the most important first.
    pub entries: Vec<Entry>,
    /// What is not in the bundle because of a limit.
    pub left_out: BTreeSet<Absence>,
    /// What could not be read.
    pub not_read: BTreeSet<Absence>,
}

impl Contents {
    /// Adds an object, or a list of objects, without its credentials.
    pub fn add_object(&mut self, path: String, mut value: Value) {
        object(&mut value);
        self.entries.push(Entry { path, content: format!("{value:#}\n") });
    }

    /// Adds a text without its credentials.
    pub fn add_text(&mut self, path: String, content: &str) {
        self.entries.push(Entry { path, content: text(content) });
    }

    /// Records what is not in the bundle because of a limit.
    pub fn leave_out(&mut self, what: &str, reason: &str) {
        self.left_out.insert(Absence { what: what.to_owned(), reason: reason.to_owned() });
    }

    /// Records what could not be read, for example because a right is missing.
    pub fn add_unread(&mut self, what: &str, error: &ReadError) {
        self.not_read.insert(Absence { what: what.to_owned(), reason: text(&error.to_string()) });
    }

    /// Returns the size of all files in a folder, in bytes.
    pub fn size_of(&self, folder: &str) -> usize {
        let in_folder = self.entries.iter().filter(|entry| entry.path.starts_with(folder));
        in_folder.map(|entry| entry.content.len()).sum()
    }

    /// Adds other contents, which are less important.
    pub fn append(&mut self, mut other: Self) {
        self.entries.append(&mut other.entries);
        self.left_out.append(&mut other.left_out);
        self.not_read.append(&mut other.not_read);
    }

    pub fn into_parts(self) -> Parts {
        Parts { entries: self.entries, left_out: self.left_out, not_read: self.not_read }
    }
}
