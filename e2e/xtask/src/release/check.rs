//! Verifies the files of a release: checksums, images, chart, lists of dependencies and archives.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use harness::{paths::Paths, process::output};
use serde_json::Value;

use super::{
    archives,
    files::{CHECKSUMS, LICENCES, MACHINES, PROGRAMS, VERSION, file, list, render},
    images,
};

/// Verifies all files.
pub(super) fn run(paths: &Paths, folder: &Path, architectures: &[String]) -> Result<()> {
    output(Command::new("sha256sum").current_dir(folder).args(["--check", "--strict", "--quiet", CHECKSUMS]))?;
    let chart = file(folder, "gpu-operator", "tgz");
    let rendered = render(paths, &chart)?;
    ensure!(
        fs::read_to_string(folder.join("install.yaml"))? == rendered,
        "install.yaml is not what {} renders to",
        chart.display()
    );
    let licences = fs::read_to_string(folder.join(LICENCES))?;
    for program in PROGRAMS {
        let list: Value = serde_json::from_str(&fs::read_to_string(file(folder, program, "cdx.json"))?)?;
        let subject = &list["metadata"]["component"];
        ensure!(subject["name"] == program && subject["version"] == VERSION, "the dependencies are those of {subject}");
        let name = Archive::unpack(&file(folder, program, "oci.tar"))?.check(program, architectures)?;
        ensure!(rendered.contains(&name), "the chart does not use {name}");
    }
    ensure!(licences.contains("Apache License"), "{LICENCES} has no licence");
    let expected = 2 * PROGRAMS.len() + 4 + archives::check(folder, architectures)?;
    let found = list(folder)?;
    ensure!(found.len() == expected, "there are {} files of {expected}: {found:?}", found.len());
    Ok(())
}

/// An unpacked image archive.
struct Archive(tempfile::TempDir);

impl Archive {
    fn unpack(path: &Path) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        output(Command::new("tar").arg("--extract").arg("--file").arg(path).arg("--directory").arg(dir.path()))?;
        Ok(Self(dir))
    }

    /// Verifies that the archive contains the program for each architecture, and returns the image's name.
    fn check(&self, program: &str, architectures: &[String]) -> Result<String> {
        let index = self.json("index.json")?;
        let name = index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"].as_str();
        let name = name.with_context(|| format!("{program}'s archive has no name: {index}"))?;
        ensure!(name.ends_with(&images::name("", program)), "{program}'s archive is called {name}");
        let list = self.blob(&index["manifests"][0])?;
        for architecture in architectures {
            let mut manifests = list["manifests"].as_array().into_iter().flatten();
            let entry = manifests.find(|entry| entry["platform"]["architecture"] == **architecture);
            let entry = entry.with_context(|| format!("{name} has no {architecture}: {list}"))?;
            self.check_image(program, architecture, &self.blob(entry)?)
                .with_context(|| format!("{name}, {architecture}"))?;
        }
        Ok(name.to_owned())
    }

    fn check_image(&self, program: &str, architecture: &str, manifest: &Value) -> Result<()> {
        let image = self.blob(&manifest["config"])?;
        let config = &image["config"];
        ensure!(image["architecture"] == architecture, "its architecture is {}", image["architecture"]);
        ensure!(config["User"] == "65532:65532", "its user is {}", config["User"]);
        let label = |name: &str| &config["Labels"][format!("org.opencontainers.image.{name}")];
        ensure!(label("title") == program && label("version") == VERSION, "its labels are {}", config["Labels"]);
        let layers = manifest["layers"].as_array().context("it has no layers")?;
        let layer = self.path(layers.last().context("it has no layers")?)?;
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--to-stdout", "--file"]).arg(layer).arg("usr/bin/entrypoint");
        let entrypoint = tar.output()?.stdout;
        let machine = MACHINES.iter().find(|(name, _)| *name == architecture).map(|(_, machine)| *machine);
        ensure!(entrypoint.starts_with(b"\x7fELF"), "its entrypoint is not a program");
        ensure!(entrypoint.get(18).copied() == machine, "its entrypoint is for another processor");
        Ok(())
    }

    fn json(&self, path: &str) -> Result<Value> {
        let text = fs::read(self.0.path().join(path)).with_context(|| format!("reading {path}"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    /// Returns the path of what a descriptor refers to.
    fn path(&self, descriptor: &Value) -> Result<std::path::PathBuf> {
        let digest = descriptor["digest"].as_str().with_context(|| format!("{descriptor} has no digest"))?;
        Ok(self.0.path().join("blobs").join(digest.replace(':', "/")))
    }

    fn blob(&self, descriptor: &Value) -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(self.path(descriptor)?)?)?)
    }
}
