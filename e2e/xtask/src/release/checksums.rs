//! `SHA256SUMS`, in the format of `sha256sum --check`.

use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use harness::files::hex;
use sha2::{Digest, Sha256};

use super::files::files;

const NAME: &str = "SHA256SUMS";

/// Writes the checksums of all files in a folder.
pub(super) fn write(folder: &Path) -> Result<()> {
    fs::write(folder.join(NAME), of(folder)?)?;
    Ok(())
}

/// Compares the checksums with the files.
pub(super) fn check(folder: &Path) -> Result<()> {
    let written = fs::read_to_string(folder.join(NAME)).context("reading SHA256SUMS")?;
    let found = of(folder)?;
    ensure!(written == found, "SHA256SUMS does not fit the files, which have these checksums:\n{found}");
    Ok(())
}

fn of(folder: &Path) -> Result<String> {
    let names = files(folder)?.into_iter().map(|(name, _)| name).filter(|name| name != NAME);
    names.map(|name| Ok(format!("{}  {name}\n", hex(&Sha256::digest(fs::read(folder.join(&name))?))))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_added_and_missing_files_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        put("a", "1");
        put("b", "2");
        write(dir.path()).unwrap();
        let text = fs::read_to_string(dir.path().join(NAME)).unwrap();
        // As `printf 1 | sha256sum` prints it.
        assert!(text.starts_with("6b86b273ff34fce19d6b804eff5a3f5747ada4eaa22f1d49c01e52ddb7875b4b  a\n"), "{text}");
        check(dir.path()).unwrap();
        put("b", "3");
        assert!(check(dir.path()).is_err());
        put("b", "2");
        put("c", "");
        assert!(check(dir.path()).is_err());
        fs::remove_file(dir.path().join("c")).unwrap();
        check(dir.path()).unwrap();
        fs::remove_file(dir.path().join("a")).unwrap();
        assert!(check(dir.path()).is_err());
    }
}
