//! Files for the tests of this folder.

use std::{fs, path::Path};

/// Writes a file below a root, and the directories above it.
pub fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
