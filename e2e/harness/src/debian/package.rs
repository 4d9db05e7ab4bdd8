//! The table of pinned packages.

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::files::hex;

/// The packages, one per line.
pub(super) const TABLE: &str = include_str!("../../../debian.txt");
/// The file of the table, for messages.
pub(super) const TABLE_FILE: &str = "e2e/debian.txt";

/// One package: a line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Package<'t> {
    pub(super) suite: &'t str,
    /// The path in a mirror's folder.
    pub(super) path: &'t str,
    size: u64,
    sha256: &'t str,
}

/// Returns the packages of one branch of the driver. All of them must belong to one version.
pub(super) fn of_branch<'t>(table: &'t str, branch: &str) -> Result<Vec<Package<'t>>> {
    let mut found = all(table)?;
    found.retain(|package| package.driver().is_some_and(|version| version.split('.').next() == Some(branch)));
    if let Some(other) = found.iter().find(|package| package.driver() != found[0].driver()) {
        bail!("{TABLE_FILE} lists two versions of branch {branch}: {} and {}", found[0].path, other.path);
    }
    Ok(found)
}

pub(super) fn named<'t>(table: &'t str, name: &str) -> Result<Package<'t>> {
    let found = all(table)?.into_iter().find(|package| package.name().is_some_and(|(known, _)| known == name));
    found.with_context(|| format!("{TABLE_FILE} does not list package {name}"))
}

fn all(table: &str) -> Result<Vec<Package<'_>>> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let packages = lines.map(|line| {
        Package::parse(line).with_context(|| {
            format!("invalid line in {TABLE_FILE}; the format is described at the top of the file: {line}")
        })
    });
    packages.collect()
}

impl<'t> Package<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (suite, path) = (words.next()?, words.next()?);
        let (size, sha256) = (words.next()?.parse().ok()?, words.next()?);
        let package = Self { suite, path, size, sha256 };
        (words.next().is_none() && sha256.len() == 64 && package.version().is_some()).then_some(package)
    }

    /// Returns its name and version, from `…/NAME_VERSION_ARCHITECTURE.deb`.
    pub(super) fn name(&self) -> Option<(&'t str, &'t str)> {
        let mut words = self.path.rsplit('/').next()?.split('_');
        Some((words.next()?, words.next()?))
    }

    /// Returns the component of Debian that it belongs to, from `pool/COMPONENT/…`.
    pub(super) fn component(&self) -> Option<&'t str> {
        self.path.split('/').nth(1)
    }

    /// Returns the version of its sources: Debian's version without the Debian revision.
    pub(super) fn version(&self) -> Option<&'t str> {
        Some(self.name()?.1.rsplit_once('-')?.0)
    }

    /// Returns the driver's version, if it is a package of NVIDIA's driver.
    pub(super) fn driver(&self) -> Option<&'t str> {
        self.version().filter(|_| self.path.contains("/nvidia-graphics-drivers"))
    }

    /// Fails if `bytes` differ from the pinned size or checksum.
    pub(super) fn check(&self, bytes: &[u8]) -> Result<()> {
        let (size, sha256) = (bytes.len() as u64, hex(&Sha256::digest(bytes)));
        if (size, sha256.as_str()) == (self.size, self.sha256) {
            return Ok(());
        }
        bail!(
            "expected {} bytes with SHA-256 {}, as listed in {TABLE_FILE}; got {size} bytes with {sha256}. A mirror never \
             changes the content of a package file: find out why before changing the line",
            self.size,
            self.sha256
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "bookworm pool/non-free/n/nvidia-graphics-drivers/libnvidia-ml1_535.261.03-1~deb12u1_amd64.deb 3 \
                        ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn every_line_of_the_table_is_of_a_driver_or_a_used_program() {
        let of_drivers: usize =
            ["470", "535", "550"].map(|branch| of_branch(TABLE, branch).unwrap().len()).iter().sum();
        let programs = ["prometheus", "docker.io"].map(|name| named(TABLE, name).unwrap());
        for program in &programs {
            assert_eq!((program.component(), program.driver()), (Some("main"), None));
        }
        assert_eq!(of_drivers + programs.len(), TABLE.lines().filter(|line| !line.starts_with('#')).count());
    }

    #[test]
    fn a_line_is_parsed_and_invalid_lines_are_rejected() {
        let package = Package::parse(LINE).unwrap();
        assert_eq!(package.name(), Some(("libnvidia-ml1", "535.261.03-1~deb12u1")));
        assert_eq!((package.driver(), package.component()), (Some("535.261.03"), Some("non-free")));
        for damaged in [&LINE[..LINE.len() - 1], &LINE.replace(" 3 ", " three "), &format!("{LINE} more"), "bookworm"] {
            let error = of_branch(damaged, "535").unwrap_err().to_string();
            assert!(error.contains(TABLE_FILE), "{error}");
        }
        let two = format!("{LINE}\n{}", LINE.replace("535.261.03", "535.274.02"));
        assert!(of_branch(&two, "535").unwrap_err().to_string().contains("two versions"));
    }

    #[test]
    fn the_error_of_a_wrong_checksum_has_both_checksums() {
        let package = Package::parse(LINE).unwrap();
        package.check(b"abc").unwrap();
        for other in [&b"abd"[..], b"abcd"] {
            let error = package.check(other).unwrap_err().to_string();
            assert!(error.contains(package.sha256) && error.contains(&hex(&Sha256::digest(other))), "{error}");
        }
    }
}
