//! Debian mirrors, accessed with apt: it knows the mirrors and the proxies.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::package::{Package, TABLE_FILE};
use crate::{packages::find, paths::Paths, process::output};

/// The environment variable with the URL of a mirror, for machines whose apt sources list none, such as Ubuntu's.
const VARIABLE: &str = "E2E_DEBIAN_MIRROR";
/// The program of package apt that fetches a file.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// The mirrors, in the order in which they are tried.
#[derive(Debug)]
pub(super) struct Mirrors {
    roots: Vec<String>,
    /// The folder for temporary files.
    folder: PathBuf,
}

impl Mirrors {
    /// Returns the mirrors in the machine's apt sources, or the one in the environment.
    pub(super) fn of_this_machine(paths: &Paths) -> Result<Self> {
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
    pub(super) fn fetch(&self, package: &Package<'_>, to: &Path) -> Result<String> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirrors_of_apts_sources_are_returned_in_order() {
        let printed = "'http://a.example/debian/dists/bookworm/InRelease' a_InRelease 0 \n\
                       'http://a.example/debian/dists/bookworm-updates/InRelease' b_InRelease 0 \n\
                       'https://b.example/debian-security/dists/bookworm-security/InRelease' c_InRelease 0 \n\
                       'http://flat.example/./InRelease' d_InRelease 0 \n";
        assert_eq!(roots(printed), ["http://a.example/debian", "https://b.example/debian-security"]);
    }

    #[test]
    fn a_mirror_list_is_expanded() {
        let list = tempfile::NamedTempFile::new().unwrap();
        fs::write(&list, "# near\nhttp://a.example/debian\tpriority:1\n\nhttps://b.example/debian\n").unwrap();
        let root = format!("mirror+file:{}", list.path().display());
        assert_eq!(expand_list(root), ["http://a.example/debian", "https://b.example/debian"]);
        assert_eq!(expand_list("http://a.example/debian".to_owned()), ["http://a.example/debian"]);
    }

    #[test]
    fn the_line_of_a_replacement_is_found_in_the_index() {
        let index = "Package: nvidia-smi-extra\nFilename: no\nSize: 1\nSHA256: no\n\n\
                     Package: nvidia-smi\nVersion: 9-1\nFilename: pool/x/nvidia-smi_9-1_amd64.deb\nInstalled-Size: 7\n\
                     Size: 5\nSHA256: abc\n\nPackage: other\n";
        let expected = "trixie pool/x/nvidia-smi_9-1_amd64.deb 5 abc";
        assert_eq!(line(index, "trixie", "nvidia-smi").as_deref(), Some(expected));
        assert_eq!(line(index, "trixie", "other"), None);
    }
}
