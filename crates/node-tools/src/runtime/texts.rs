//! The texts of configuration files, and their digest.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// The text of a file; `None` if it does not exist.
pub type Text = Option<String>;

/// The current files, by path.
pub type Texts = BTreeMap<PathBuf, Text>;

/// Returns a digest of the files: the same for the same texts.
pub fn digest<'t>(texts: impl IntoIterator<Item = (&'t Path, &'t Text)>) -> String {
    use sha2::{Digest, Sha256};
    let mut hash = Sha256::new();
    for (path, text) in texts {
        // Lengths keep the end of one file from being confused with the start of another.
        let text = text.as_deref();
        hash.update(format!("{}\0{:?}\0", path.display(), text.map(str::len)));
        hash.update(text.unwrap_or_default());
    }
    let hash = hash.finalize();
    let half: [u8; 16] = std::array::from_fn(|at| hash[at]);
    format!("{:032x}", u128::from_be_bytes(half))
}
