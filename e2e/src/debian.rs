//! NVIDIA's own libraries and programs, as Debian packages them, for tests. Nothing of them is shipped, and neither the
//! machine's apt sources nor its dpkg database is touched: the packages come from the mirror that those sources name, are held
//! against pinned checksums and unpacked below `target/e2e`.

mod mirror;

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use crate::{paths::Paths, process::output, progress::Step, tools::hex};
use mirror::Mirrors;

/// The packages, one a line.
const TABLE: &str = include_str!("../debian.txt");
/// Where a person changes them.
const TABLE_FILE: &str = "e2e/debian.txt";

/// A driver of NVIDIA's without its kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// NVIDIA's version, such as `535.261.03`.
    pub version: String,
    /// The folder that its packages are unpacked in, which is no root of a whole system.
    pub root: PathBuf,
}

/// A line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Package<'t> {
    suite: &'t str,
    /// Below a mirror's folder.
    path: &'t str,
    size: u64,
    sha256: &'t str,
}

/// Returns the driver of a branch, such as `535`; its packages are fetched and unpacked once.
///
/// # Errors
/// Where the table has none, or a package cannot be fetched, is not the one that is pinned, or cannot be unpacked. The error
/// says what to change.
pub fn driver(branch: &str) -> Result<Driver> {
    // Tests ask at once.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let paths = Paths::new();
    let packages = of_branch(TABLE, branch)?;
    let Some(version) = packages.first().and_then(Package::driver) else {
        bail!("{TABLE_FILE} has no package of branch {branch}");
    };
    let driver = Driver { version: version.to_owned(), root: paths.debian().join(version) };
    let stamp = hex(&Sha256::digest(format!("{packages:?}")));
    let stamp_file = paths.stamps().join(format!("debian-{version}"));
    if driver.root.is_dir() && fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        return Ok(driver);
    }
    let step = Step::start(format!("fetching NVIDIA's driver {version} from a mirror of Debian"));
    unpack(&paths, &packages, &driver.root)?;
    fs::create_dir_all(paths.stamps())?;
    fs::write(stamp_file, stamp)?;
    step.done();
    Ok(driver)
}

/// The packages of one branch, which all must be of one driver.
fn of_branch<'t>(table: &'t str, branch: &str) -> Result<Vec<Package<'t>>> {
    let mut found: Vec<Package<'t>> = Vec::new();
    for line in table.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let package =
            Package::parse(line).with_context(|| format!("a line of {TABLE_FILE} is not as said there: {line}"))?;
        if package.driver().is_some_and(|version| version.split('.').next() == Some(branch)) {
            found.push(package);
        }
    }
    if let Some(other) = found.iter().find(|package| package.driver() != found[0].driver()) {
        bail!("{TABLE_FILE} has packages of branch {branch} of two versions, {} and {}", found[0].path, other.path);
    }
    Ok(found)
}

/// Unpacks packages into a folder of their own, which is there whole or not at all.
fn unpack(paths: &Paths, packages: &[Package<'_>], root: &Path) -> Result<()> {
    let mirrors = Mirrors::of_this_machine(paths)?;
    let (file, new) = (paths.debian().join("package.deb"), paths.debian().join("new"));
    for folder in [&new, root] {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("removing {}", folder.display()));
            }
            _ => {}
        }
    }
    fs::create_dir_all(&new)?;
    for package in packages {
        let url = mirrors.fetch(package, &file)?;
        package.check(&fs::read(&file)?).with_context(|| format!("{url} is not what is pinned"))?;
        output(Command::new("dpkg-deb").arg("-x").args([&file, &new]))?;
    }
    fs::remove_file(file)?;
    Ok(fs::rename(new, root)?)
}

impl<'t> Package<'t> {
    fn parse(line: &'t str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (suite, path) = (words.next()?, words.next()?);
        let (size, sha256) = (words.next()?.parse().ok()?, words.next()?);
        let package = Self { suite, path, size, sha256 };
        (words.next().is_none() && sha256.len() == 64 && package.driver().is_some()).then_some(package)
    }

    /// Its name and version, from `…/NAME_VERSION_ARCHITECTURE.deb`.
    fn name(&self) -> Option<(&'t str, &'t str)> {
        let mut words = self.path.rsplit('/').next()?.split('_');
        Some((words.next()?, words.next()?))
    }

    /// The driver's version: Debian's without its own part.
    fn driver(&self) -> Option<&'t str> {
        Some(self.name()?.1.rsplit_once('-')?.0)
    }

    fn check(&self, bytes: &[u8]) -> Result<()> {
        let (size, sha256) = (bytes.len() as u64, hex(&Sha256::digest(bytes)));
        if (size, sha256.as_str()) == (self.size, self.sha256) {
            return Ok(());
        }
        bail!(
            "it has {size} bytes with SHA-256 {sha256}, and {TABLE_FILE} says {} bytes with {}. A mirror never changes what \
             it has under one name: find out why before you change the line",
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
    fn every_line_of_the_table_is_of_one_of_the_drivers_that_tests_ask_for() {
        let of_all: usize = ["470", "535", "550"].map(|branch| of_branch(TABLE, branch).unwrap().len()).iter().sum();
        assert_eq!(of_all, TABLE.lines().filter(|line| !line.starts_with('#')).count());
    }

    #[test]
    fn a_line_tells_name_version_and_driver_and_a_damaged_one_is_refused() {
        let package = Package::parse(LINE).unwrap();
        assert_eq!(package.name(), Some(("libnvidia-ml1", "535.261.03-1~deb12u1")));
        assert_eq!(package.driver(), Some("535.261.03"));
        for damaged in [&LINE[..LINE.len() - 1], &LINE.replace(" 3 ", " three "), &format!("{LINE} more"), "bookworm"] {
            let error = of_branch(damaged, "535").unwrap_err().to_string();
            assert!(error.contains(TABLE_FILE), "{error}");
        }
        let two = format!("{LINE}\n{}", LINE.replace("535.261.03", "535.274.02"));
        assert!(of_branch(&two, "535").unwrap_err().to_string().contains("two versions"));
    }

    #[test]
    fn other_bytes_than_the_pinned_ones_are_refused_with_both_checksums() {
        let package = Package::parse(LINE).unwrap();
        package.check(b"abc").unwrap();
        for other in [&b"abd"[..], b"abcd"] {
            let error = package.check(other).unwrap_err().to_string();
            assert!(error.contains(package.sha256) && error.contains(&hex(&Sha256::digest(other))), "{error}");
        }
    }
}
