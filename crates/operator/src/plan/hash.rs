//! Content hashes: what names a revision, and what tells whether an object is there as it should be.

use serde::Serialize;
use sha2::{Digest, Sha256};

/// Hash of a value's JSON, in `digits` hexadecimal digits (at most 16).
#[must_use]
pub fn short(content: &impl Serialize, digits: usize) -> String {
    // Plain data becomes JSON without fail; were it not to, the hash would still be a legal name.
    let digest = Sha256::digest(serde_json::to_vec(content).unwrap_or_default());
    let number = digest.first_chunk::<8>().map_or(0, |bytes| u64::from_be_bytes(*bytes));
    format!("{number:016x}").chars().take(digits).collect()
}
