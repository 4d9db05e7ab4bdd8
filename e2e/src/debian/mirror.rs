//! Mirrors of Debian, by apt's own means: it knows which they are and by what way they are reached.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

use super::{Package, TABLE_FILE};
use crate::{packages::find, paths::Paths, process::output};

/// Names a mirror for machines whose own apt has none, such as Ubuntu's.
const VARIABLE: &str = "E2E_DEBIAN_MIRROR";
/// The program of the package apt that fetches a file.
const HELPER: &str = "/usr/lib/apt/apt-helper";

/// The mirrors that are asked, one after the other.
#[derive(Debug)]
pub(super) struct Mirrors {
    roots: Vec<String>,
    /// Where what is fetched on the way lies.
    folder: PathBuf,
}

impl Mirrors {
    /// Those of the machine's apt, or the one that the environment names.
    pub(super) fn of_this_machine(paths: &Paths) -> Result<Self> {
        if !Path::new(HELPER).is_file() || find("dpkg-deb").is_none() {
            bail!("NVIDIA's real libraries come as Debian's packages: apt and dpkg-deb are needed for these tests");
        }
        let folder = paths.debian();
        fs::create_dir_all(&folder)?;
        let roots = if let Ok(root) = env::var(VARIABLE) {
            vec![root]
        } else {
            // Lists of its own: without any, apt names all that it would fetch, and takes no lock of the machine's.
            let lists = format!("Dir::State::lists={}", folder.join("lists").display());
            roots(&output(Command::new("apt-get").args(["-o", &lists, "update", "--print-uris"]))?)
        };
        let roots = roots.into_iter().flat_map(listed).collect();
        Ok(Self { roots, folder })
    }

    /// Fetches a package and returns where it was found.
    pub(super) fn fetch(&self, package: &Package<'_>, to: &Path) -> Result<String> {
        let mut told = Vec::new();
        for root in &self.roots {
            let url = format!("{}/{}", root.trim_end_matches('/'), package.path);
            match fetch(&url, to) {
                Ok(()) => return Ok(url),
                Err(why) => told.push(format!("  {url}: {why}")),
            }
        }
        let instead = match self.roots.iter().find_map(|root| self.present(root, package)) {
            Some(line) => format!("In place of its line write\n  {line}"),
            None => format!("Is one of them a mirror of Debian with non-free? Another one is named by {VARIABLE}"),
        };
        let (name, version) = package.name().unwrap_or_default();
        bail!(
            "{name} {version} of {TABLE_FILE} cannot be fetched; a mirror has a package until Debian replaces it.\n{}\n{instead}",
            told.join("\n"),
        );
    }

    /// The line for what a mirror has of that name now.
    fn present(&self, root: &str, package: &Package<'_>) -> Option<String> {
        let component = package.path.split('/').nth(1)?;
        let url =
            format!("{}/dists/{}/{component}/binary-amd64/Packages.xz", root.trim_end_matches('/'), package.suite);
        let file = self.folder.join("Packages.xz");
        fetch(&url, &file).ok()?;
        let index = output(Command::new(HELPER).arg("cat-file").arg(file)).ok()?;
        line(&index, package.suite, package.name()?.0)
    }
}

/// Fetches a file with apt's configuration of proxies and keys; the error is what apt says.
fn fetch(url: &str, to: &Path) -> Result<(), String> {
    let mut helper = Command::new(HELPER);
    helper.args(["-o", "Acquire::Retries=3", "download-file", url]).arg(to);
    let error = match output(&mut helper) {
        Ok(_) => return Ok(()),
        Err(error) => error.to_string(),
    };
    let said = error.lines().find_map(|line| line.trim().strip_prefix("E: ")).map(str::to_owned);
    Err(said.unwrap_or(error))
}

/// The mirrors in what `apt-get update --print-uris` prints, each once: what is before `/dists/`.
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

/// What a root stands for: the mirrors in a list, such as cloud images of Debian have, or itself.
fn listed(root: String) -> Vec<String> {
    let Some(list) = root.strip_prefix("mirror+file:") else { return vec![root] };
    let text = fs::read_to_string(list).unwrap_or_default();
    let first_words = text.lines().filter_map(|line| line.split_whitespace().next());
    first_words.filter(|word| !word.starts_with('#')).map(str::to_owned).collect()
}

/// The table's line for a package, from an index of packages.
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
    fn the_mirrors_are_those_of_apts_sources_in_their_order() {
        let printed = "'http://a.example/debian/dists/bookworm/InRelease' a_InRelease 0 \n\
                       'http://a.example/debian/dists/bookworm-updates/InRelease' b_InRelease 0 \n\
                       'https://b.example/debian-security/dists/bookworm-security/InRelease' c_InRelease 0 \n\
                       'http://flat.example/./InRelease' d_InRelease 0 \n";
        assert_eq!(roots(printed), ["http://a.example/debian", "https://b.example/debian-security"]);
    }

    #[test]
    fn a_list_of_mirrors_stands_for_those_in_it() {
        let list = tempfile::NamedTempFile::new().unwrap();
        fs::write(&list, "# near\nhttp://a.example/debian\tpriority:1\n\nhttps://b.example/debian\n").unwrap();
        let root = format!("mirror+file:{}", list.path().display());
        assert_eq!(listed(root), ["http://a.example/debian", "https://b.example/debian"]);
        assert_eq!(listed("http://a.example/debian".to_owned()), ["http://a.example/debian"]);
    }

    #[test]
    fn the_line_of_what_took_a_packages_place_is_told() {
        let index = "Package: nvidia-smi-extra\nFilename: no\nSize: 1\nSHA256: no\n\n\
                     Package: nvidia-smi\nVersion: 9-1\nFilename: pool/x/nvidia-smi_9-1_amd64.deb\nInstalled-Size: 7\n\
                     Size: 5\nSHA256: abc\n\nPackage: other\n";
        let expected = "trixie pool/x/nvidia-smi_9-1_amd64.deb 5 abc";
        assert_eq!(line(index, "trixie", "nvidia-smi").as_deref(), Some(expected));
        assert_eq!(line(index, "trixie", "other"), None);
    }
}
