//! The files of the checkout that are generated from its sources: `cargo xtask generate` writes them, and a test fails if a
//! committed file differs.

mod crds;
mod file;
mod pages;

use std::{fs, path::Path};

use anyhow::{Context, Result};
use file::Generated;
use harness::{licences::notice, outln, paths::Paths};

fn files(checkout: &Path) -> Result<Vec<Generated>> {
    let notice = Generated { path: "NOTICE".to_owned(), text: notice(checkout)? };
    Ok(crds::files()?.into_iter().chain(pages::files(checkout)?).chain([notice]).collect())
}

/// Writes all generated files, and prints the paths of those that changed.
fn main() -> Result<()> {
    let checkout = Paths::new().root;
    for Generated { path, text } in files(&checkout)? {
        let file = checkout.join(&path);
        if fs::read_to_string(&file).is_ok_and(|old| old == text) {
            continue;
        }
        fs::write(&file, text).with_context(|| format!("writing {}", file.display()))?;
        outln!("{path}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_committed_file_is_up_to_date() {
        let checkout = Paths::new().root;
        let outdated: Vec<String> = files(&checkout)
            .unwrap()
            .into_iter()
            .filter(|file| fs::read_to_string(checkout.join(&file.path)).ok().as_ref() != Some(&file.text))
            .map(|file| file.path)
            .collect();
        assert!(outdated.is_empty(), "run cargo xtask generate, which changes {outdated:?}");
    }

    #[test]
    fn config_crd_contains_generated_files_only() {
        let checkout = Paths::new().root;
        assert_eq!(fs::read_dir(checkout.join("config/crd")).unwrap().count(), crds::files().unwrap().len());
    }
}
