//! The images of the nodes. They are built from Dockerfiles, without a container engine or a registry, and kept until
//! an input changes.
//!
//! All image names start with `localhost:5999`, where nothing listens, so that pulling a missing image fails at once.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::{
    buildah::{ARCHITECTURE, Debian, buildah},
    cargo::Build,
    files::{copy, hash_tree, hex},
    packages::find,
    paths::Paths,
    process::{output, run_logged},
    progress::{Step, heading},
};

/// The image of every pod's sandbox.
pub const PAUSE_IMAGE: &str = "localhost:5999/pause:e2e";
/// The base of every image: Debian's C library and certificates, and busybox, whose commands exist only in images that link
/// them.
const BASE: Debian = Debian {
    name: "gpu-operator-e2e-base",
    packages: &["libc6", "libgcc-s1", "ca-certificates", "busybox"],
    architecture: ARCHITECTURE,
    instructions: "",
};
/// The stand-ins for Google's installer and device plugin.
const GOOGLE: &str = "localhost:5999/google/stand-in:dev";
/// The stand-in for NVIDIA's device plugin.
const STANDIN_PLUGIN: &str = "localhost:5999/stand-in/k8s-device-plugin:dev";
/// Driver images: the version, and the kind of image as the stand-in names it.
const DRIVERS: [(&str, &str); 5] = [
    ("580.173.02", "current"),
    ("590.10.01", "current"),
    ("595.91.07", "current"),
    ("535.261.03", "old"),
    ("580.173.02", "precompiled"),
];

/// The source of a file in an image.
enum Source {
    /// A program or library built by cargo.
    Cargo(&'static str),
    /// A file or folder of the checkout.
    Checkout(&'static str),
    /// All programs built from NVIDIA's toolkit module.
    Nvidia,
    /// A program built from the module of NVIDIA's device plugin.
    NvidiaPlugin(&'static str),
    /// One of the cluster's programs.
    Tool(&'static str),
}

pub struct Image {
    /// Its name, with the tag.
    pub name: String,
    dockerfile: &'static str,
    /// The stage of the Dockerfile; by default the last.
    target: Option<&'static str>,
    args: Vec<(&'static str, String)>,
    /// The files of the build context, each with its path there.
    context: Vec<(Source, &'static str)>,
}

/// Returns all images; without `all`, only those that every pod needs.
pub fn list(all: bool) -> Result<Vec<Image>> {
    Ok(images(all, &kernel()?))
}

fn images(all: bool, kernel: &str) -> Vec<Image> {
    let program = |name: String, binary: &'static str| Image {
        name,
        dockerfile: "Dockerfile",
        target: Some("prebuilt"),
        args: vec![("BINARY", binary.to_owned())],
        context: vec![(Source::Cargo(binary), binary)],
    };
    let product = |name: &'static str| program(format!("localhost:5999/{name}:dev"), name);
    let pause = program(PAUSE_IMAGE.to_owned(), "pause");
    if !all {
        return vec![pause];
    }
    let toolkit = Image {
        name: "localhost:5999/nvidia/k8s/container-toolkit:v1.20.2".to_owned(),
        dockerfile: "e2e/standins/toolkit.Dockerfile",
        target: None,
        args: Vec::new(),
        context: vec![(Source::Nvidia, "nvidia"), (Source::Checkout("e2e/standins/placeholder"), "placeholder")],
    };
    let plugin = Image {
        name: "localhost:5999/nvidia/k8s-device-plugin:v0.19.3".to_owned(),
        dockerfile: "e2e/standins/device-plugin.Dockerfile",
        target: None,
        args: Vec::new(),
        context: vec![
            (Source::NvidiaPlugin("nvidia-device-plugin"), "plugin/nvidia-device-plugin"),
            (Source::NvidiaPlugin("mps-control-daemon"), "plugin/mps-control-daemon"),
        ],
    };
    let standin_plugin = Image {
        name: STANDIN_PLUGIN.to_owned(),
        dockerfile: "e2e/standins/stand-in-plugin.Dockerfile",
        target: None,
        args: Vec::new(),
        context: vec![(Source::Cargo("nvidia-device-plugin"), "nvidia-device-plugin")],
    };
    let dra_driver = Image {
        name: "localhost:5999/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.4.1".to_owned(),
        dockerfile: "e2e/standins/dra-driver.Dockerfile",
        target: None,
        args: Vec::new(),
        context: vec![(Source::Tool("gpu-kubelet-plugin"), "gpu-kubelet-plugin")],
    };
    let vector_add = program("localhost:5999/nvidia/k8s/cuda-sample:vectoradd-cuda12.5.0".to_owned(), "vector-add");
    let google = Image {
        name: GOOGLE.to_owned(),
        dockerfile: "e2e/standins/google.Dockerfile",
        target: None,
        args: Vec::new(),
        context: ["libstandin_nvml.so", "nvidia-installer", "nvidia-gpu-device-plugin", "nvidia-smi"]
            .map(|name| (Source::Cargo(name), name))
            .into(),
    };
    let driver = |(version, kind): (&str, &str)| Image {
        name: format!("localhost:5999/nvidia/driver:{}", driver_tag(version, kind, kernel)),
        dockerfile: "e2e/standins/driver.Dockerfile",
        target: None,
        args: vec![("DRIVER_VERSION", version.to_owned()), ("STANDIN_KIND", kind.to_owned())],
        context: vec![
            (Source::Cargo("libstandin_nvml.so"), "libstandin_nvml.so"),
            (Source::Cargo("nvidia-driver"), "nvidia-driver"),
            (Source::Cargo("nvidia-smi"), "nvidia-smi"),
        ],
    };
    let products = [product("gpu-operator"), product("nvml-probe")];
    let mut images: Vec<Image> =
        products.into_iter().chain([pause, toolkit, plugin, standin_plugin, dra_driver, vector_add, google]).collect();
    images.extend(DRIVERS.map(driver));
    images
}

/// Returns the tag of a driver image. A precompiled image has the kernel in its tag, and only the branch of the
/// version.
fn driver_tag(version: &str, kind: &str, kernel: &str) -> String {
    match version.split_once('.').filter(|_| kind == "precompiled") {
        Some((branch, _)) => format!("{branch}-{kernel}-ubuntu22.04"),
        None => format!("{version}-ubuntu22.04"),
    }
}

/// Returns the kernel release of this machine, which is also that of its nodes.
fn kernel() -> Result<String> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").context("the kernel's release")?;
    Ok(release.trim().to_owned())
}

/// Builds missing and outdated images; without `all`, only those that every pod needs. The programs must have been
/// built.
pub fn build(paths: &Paths, all: bool) -> Result<()> {
    let base = BASE.ensure(paths)?;
    let mut outdated = Vec::new();
    for image in list(all)? {
        let (context, stamp) = image.prepare(paths, &base)?;
        if fs::read_to_string(image.stamp_file(paths)).is_ok_and(|old| old == stamp) && image.archive(paths).is_file() {
            continue;
        }
        outdated.push((image, context, stamp));
    }
    if outdated.is_empty() {
        return Ok(());
    }
    heading("building the images of the nodes");
    for (image, context, stamp) in outdated {
        let step = Step::start(&image.name);
        image.build(paths, &base, context.path(), &step).with_context(|| format!("building {}", image.name))?;
        fs::write(image.stamp_file(paths), stamp)?;
        step.done();
    }
    Ok(())
}

impl Image {
    fn file(&self, paths: &Paths, ending: &str) -> PathBuf {
        let name = self.name.trim_start_matches("localhost:5999/").replace(['/', ':'], "_");
        paths.images().join(format!("{name}.{ending}"))
    }
    /// Returns the path of its archive, which containerd can import.
    pub fn archive(&self, paths: &Paths) -> PathBuf {
        self.file(paths, "tar")
    }
    /// Returns the path of the file with the hash of all its inputs.
    pub fn stamp_file(&self, paths: &Paths) -> PathBuf {
        self.file(paths, "stamp")
    }

    /// Writes the build context and hashes all inputs of the image.
    fn prepare(&self, paths: &Paths, base: &str) -> Result<(tempfile::TempDir, String)> {
        let dir = tempfile::tempdir_in(paths.images())?;
        for (source, place) in &self.context {
            let to = dir.path().join(place);
            match source {
                Source::Cargo(name) => copy_stripped(&Build::Debug.file(paths, name), &to)?,
                Source::Checkout(path) => copy(&paths.root.join(path), &to)?,
                Source::Nvidia => copy(&paths.nvidia(), &to)?,
                Source::NvidiaPlugin(name) => copy(&paths.nvidia_plugin().join(name), &to)?,
                Source::Tool(name) => copy(&paths.tool(name), &to)?,
            }
        }
        let mut hash = Sha256::new();
        hash.update(base);
        hash.update(
            fs::read(paths.root.join(self.dockerfile)).with_context(|| format!("reading {}", self.dockerfile))?,
        );
        hash.update(format!("{:?} {:?}", self.target, self.args));
        hash_tree(dir.path(), dir.path(), &mut hash)?;
        Ok((dir, hex(&hash.finalize())))
    }

    fn build(&self, paths: &Paths, base: &str, context: &Path, step: &Step) -> Result<()> {
        let mut build = buildah(paths);
        build
            .args(["bud", "--isolation", "chroot", "--pull-never", "--build-arg", &format!("BASE={base}")])
            .args(self.target.iter().flat_map(|target| ["--target", target]))
            .args(self.args.iter().flat_map(|(key, value)| ["--build-arg".to_owned(), format!("{key}={value}")]))
            .args(["--tag", &self.name, "--file"])
            .arg(paths.root.join(self.dockerfile))
            .arg(context);
        let log = paths.log("images");
        run_logged(&mut build, &log, || step.tick("building"))?;
        let archive = self.archive(paths);
        let new = archive.with_extension("new");
        let mut push = buildah(paths);
        push.args(["push", "--disable-compression", &self.name]).arg(format!(
            "oci-archive:{}:{}",
            new.display(),
            self.name
        ));
        run_logged(&mut push, &log, || step.tick("writing"))?;
        fs::rename(new, archive)?;
        // Only the archive is kept.
        let mut remove = buildah(paths);
        run_logged(remove.args(["rmi", &self.name]), &log, || step.tick("tidying up"))
    }
}

/// Copies a program without its debug symbols, which reduces the images to a third of their size.
fn copy_stripped(from: &Path, to: &Path) -> Result<()> {
    copy(from, to)?;
    if find("strip").is_some() {
        output(Command::new("strip").arg("--strip-debug").arg(to))?;
    }
    Ok(())
}
