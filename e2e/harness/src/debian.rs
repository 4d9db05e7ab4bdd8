//! NVIDIA's own libraries and programs, promtool and Docker, as packaged by Debian, for tests. They are never shipped. The packages are
//! fetched from the mirrors in the machine's apt sources, compared with pinned checksums and unpacked in `target/e2e`;
//! the machine's apt sources and its dpkg database stay unchanged.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::{
    files::{hex, remove_tree},
    packages::find,
    paths::Paths,
    process::output,
    progress::Step,
};

/// A driver by NVIDIA, without its kernel module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// NVIDIA's version, such as `535.261.03`.
    pub version: String,
    /// The folder with the files of its packages. It is not the root of a complete system.
    pub root: PathBuf,
}

/// Returns the driver of a branch, such as `535`. Its packages are fetched and unpacked once.
pub fn driver(branch: &str) -> Result<Driver> {
    let packages = of_branch(TABLE, branch)?;
    let Some(version) = packages.first().and_then(Package::driver) else {
        bail!("{TABLE_FILE} lists no package of branch {branch}");
    };
    let root = unpacked(version, &format!("NVIDIA's driver {version}"), &packages)?;
    Ok(Driver { version: version.to_owned(), root })
}

/// Returns the path of promtool, which checks and tests alerts. Its package is fetched and unpacked once.
pub fn promtool() -> Result<PathBuf> {
    let package = named(TABLE, "prometheus")?;
    Ok(unpacked("prometheus", "promtool", &[package])?.join("usr/bin/promtool"))
}

/// The programs of Docker.
#[derive(Clone, Debug)]
pub struct Docker {
    pub daemon: PathBuf,
    /// The program `docker`.
    pub client: PathBuf,
}

/// Returns Docker. Its package is fetched and unpacked once.
pub fn docker() -> Result<Docker> {
    let package = named(TABLE, "docker.io")?;
    let root = unpacked("docker", "Docker", &[package])?;
    Ok(Docker { daemon: root.join("usr/sbin/dockerd"), client: root.join("usr/bin/docker") })
}

#[cfg(test)]
pub(crate) fn docker_version() -> Option<&'static str> {
    named(TABLE, "docker.io").ok().and_then(|package| package.version())
}

/// Returns the folder `name`, into which packages have been unpacked. `what` describes them.
fn unpacked(name: &str, what: &str, packages: &[Package<'_>]) -> Result<PathBuf> {
    // Tests call this at the same time.
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let paths = Paths::new();
    let root = paths.debian().join(name);
    let stamp = hex(&Sha256::digest(format!("{packages:?}")));
    let stamp_file = paths.stamps().join(format!("debian-{name}"));
    if root.is_dir() && fs::read_to_string(&stamp_file).is_ok_and(|old| old == stamp) {
        return Ok(root);
    }
    let step = Step::start(format!("fetching {what} from a Debian mirror"));
    unpack(&paths, packages, &root)?;
    fs::create_dir_all(paths.stamps())?;
    fs::write(stamp_file, stamp)?;
    step.done();
    Ok(root)
}

/// Unpacks packages into the folder `root`, which appears only once it is complete.
fn unpack(paths: &Paths, packages: &[Package<'_>], root: &Path) -> Result<()> {
    let mirrors = Mirrors::of_this_machine(paths)?;
    let (file, new) = (paths.debian().join("package.deb"), paths.debian().join("new"));
    for folder in [&new, root] {
        remove_tree(folder)?;
    }
    fs::create_dir_all(&new)?;
    for package in packages {
        let url = mirrors.fetch(package, &file)?;
        package.check(&fs::read(&file)?).with_context(|| format!("{url} differs from the pinned checksum"))?;
        output(Command::new("dpkg-deb").arg("-x").args([&file, &new]))?;
    }
    fs::remove_file(file)?;
    Ok(fs::rename(new, root)?)
}

/// The environment variable with the URL of a mirror, for machines whose apt sources list none, such as Ubuntu's.
const VARIABLE: &str = "E2E_DEBIAN_MIRROR";
/// The program of package apt that fetches a file.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// The mirrors, in the order in which they are tried.
#[derive(Debug)]
struct Mirrors {
    roots: Vec<String>,
    /// The folder for temporary files.
    folder: PathBuf,
}

impl Mirrors {
    /// Returns the mirrors in the machine's apt sources, or the one in the environment.
    fn of_this_machine(paths: &Paths) -> Result<Self> {
        if !Path::new(HELPER).is_file() || find("dpkg-deb").is_none() {
            bail!("these tests use Debian packages: install apt and dpkg-deb");
        }
        let folder = paths.debian();
        fs::create_dir_all(&folder)?;
        let roots = if let Ok(root) = env::var(VARIABLE) {
            vec![root]
        } else {
            // With an empty folder of package lists, apt prints everything that it would fetch, and takes no lock.
            let lists = format!("Dir::State::lists={}", folder.join("lists").display());
            roots(&output(Command::new("apt-get").args(["-o", &lists, "update", "--print-uris"]))?)
        };
        let roots = roots.into_iter().flat_map(expand_list).collect();
        Ok(Self { roots, folder })
    }

    /// Fetches a package and returns its URL.
    fn fetch(&self, package: &Package<'_>, to: &Path) -> Result<String> {
        let mut errors = Vec::new();
        for root in &self.roots {
            let url = format!("{}/{}", root.trim_end_matches('/'), package.path);
            match fetch(&url, to) {
                Ok(()) => return Ok(url),
                Err(error) => errors.push(format!("  {url}: {error}")),
            }
        }
        let remedy = match self.roots.iter().find_map(|root| self.current_line(root, package)) {
            Some(line) => format!("Replace its line with\n  {line}"),
            None => format!(
                "Set {VARIABLE} to the URL of a Debian mirror that has the component {}",
                package.component().unwrap_or_default()
            ),
        };
        let (name, version) = package.name().unwrap_or_default();
        bail!(
            "cannot fetch {name} {version}, listed in {TABLE_FILE}; mirrors drop a package when Debian replaces it.\n{}\n{remedy}",
            errors.join("\n"),
        );
    }

    /// Returns the line for the version of a package that a mirror has now.
    fn current_line(&self, root: &str, package: &Package<'_>) -> Option<String> {
        let component = package.component()?;
        let url =
            format!("{}/dists/{}/{component}/binary-amd64/Packages.xz", root.trim_end_matches('/'), package.suite);
        let file = self.folder.join("Packages.xz");
        fetch(&url, &file).ok()?;
        let index = output(Command::new(HELPER).arg("cat-file").arg(file)).ok()?;
        line(&index, package.suite, package.name()?.0)
    }
}

/// Fetches a file with apt's configuration of proxies and keys. The error is apt's message.
fn fetch(url: &str, to: &Path) -> Result<(), String> {
    let mut helper = Command::new(HELPER);
    helper.args(["-o", "Acquire::Retries=3", "download-file", url]).arg(to);
    let error = match output(&mut helper) {
        Ok(_) => return Ok(()),
        Err(error) => error.to_string(),
    };
    let message = error.lines().find_map(|line| line.trim().strip_prefix("E: ")).map(str::to_owned);
    Err(message.unwrap_or(error))
}

/// Returns the mirrors in the output of `apt-get update --print-uris`, each once: the part before `/dists/`.
fn roots(printed: &str) -> Vec<String> {
    let mut roots: Vec<String> = Vec::new();
    for line in printed.lines() {
        let url = line.strip_prefix('\'').and_then(|line| line.split('\'').next());
        if let Some((root, _)) = url.and_then(|url| url.split_once("/dists/"))
            && !roots.iter().any(|known| known == root)
        {
            roots.push(root.to_owned());
        }
    }
    roots
}

/// Returns the mirrors in a mirror list, which Debian's cloud images use, or the root itself if it is not a list.
fn expand_list(root: String) -> Vec<String> {
    let Some(list) = root.strip_prefix("mirror+file:") else { return vec![root] };
    let text = fs::read_to_string(list).unwrap_or_default();
    let first_words = text.lines().filter_map(|line| line.split_whitespace().next());
    first_words.filter(|word| !word.starts_with('#')).map(str::to_owned).collect()
}

/// Returns the table's line for a package, from an index of packages.
fn line(index: &str, suite: &str, name: &str) -> Option<String> {
    let entry =
        index.split("\n\n").find(|entry| entry.lines().any(|line| line.strip_prefix("Package: ") == Some(name)))?;
    let field = |field: &str| entry.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(": "));
    Some(format!("{suite} {} {} {}", field("Filename")?, field("Size")?, field("SHA256")?))
}

/// The packages, one per line.
const TABLE: &str = include_str!("../../debian.txt");
/// The file of the table, for messages.
const TABLE_FILE: &str = "e2e/debian.txt";

/// One package: a line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Package<'t> {
    suite: &'t str,
    /// The path in a mirror's folder.
    path: &'t str,
    size: u64,
    sha256: &'t str,
}

/// Returns the packages of one branch of the driver. All of them must belong to one version.
fn of_branch<'t>(table: &'t str, branch: &str) -> Result<Vec<Package<'t>>> {
    let mut found = all(table)?;
    found.retain(|package| package.driver().is_some_and(|version| version.split('.').next() == Some(branch)));
    if let Some(other) = found.iter().find(|package| package.driver() != found[0].driver()) {
        bail!("{TABLE_FILE} lists two versions of branch {branch}: {} and {}", found[0].path, other.path);
    }
    Ok(found)
}

fn named<'t>(table: &'t str, name: &str) -> Result<Package<'t>> {
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
    fn name(&self) -> Option<(&'t str, &'t str)> {
        let mut words = self.path.rsplit('/').next()?.split('_');
        Some((words.next()?, words.next()?))
    }

    /// Returns the component of Debian that it belongs to, from `pool/COMPONENT/…`.
    fn component(&self) -> Option<&'t str> {
        self.path.split('/').nth(1)
    }

    /// Returns the version of its sources: Debian's version without the Debian revision.
    fn version(&self) -> Option<&'t str> {
        Some(self.name()?.1.rsplit_once('-')?.0)
    }

    /// Returns the driver's version, if it is a package of NVIDIA's driver.
    fn driver(&self) -> Option<&'t str> {
        self.version().filter(|_| self.path.contains("/nvidia-graphics-drivers"))
    }

    /// Fails if `bytes` differ from the pinned size or checksum.
    fn check(&self, bytes: &[u8]) -> Result<()> {
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
}
