//! Makes a node's driver available in a container without the help of a container runtime: its libraries where the
//! image's dynamic linker searches by default, its programs where they are found without a `PATH`, and its device
//! nodes. A container runtime injects to the same places, so programs that start others with their own environment find
//! everything.

use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt, symlink},
    path::{Path, PathBuf},
};

use gpu_host::{
    nvml::trusted::{LibraryError, LibraryRoot},
    observe::driver::library_directories,
    root::HostRoot,
};

use super::device_nodes;

const NVML: &str = "libnvidia-ml.so.1";
/// CUDA does not work without these.
const CUDA: [&str; 2] = ["libcuda.so.1", NVML];
/// The prefixes of the driver's libraries that these load.
const LIBRARIES: [&str; 3] = ["libcuda.so.", "libcudadebugger.so.", "libnvidia-"];
const PROGRAMS: [&str; 3] = ["nvidia-smi", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server"];
/// Where drivers install programs: Debian puts the server among the administrators' programs.
const PROGRAM_DIRECTORIES: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];
/// The default search paths of dynamic linkers, by distribution. An image has its C library in one of them.
const LINKER_DIRECTORIES: [&str; 6] = [
    "usr/lib64",
    "lib64",
    "usr/lib/x86_64-linux-gnu",
    "lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib/aarch64-linux-gnu",
];
const C_LIBRARY: &str = "libc.so.6";
/// The prefix of a driver's device nodes and of the folder with those of MIG.
const NODES: &str = "nvidia";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// NVML. CUDA's libraries beside it are made available too.
    Nvml,
    /// CUDA, NVML and the programs of CUDA's MPS.
    Mps,
}

impl Needs {
    const fn libraries(self) -> &'static [&'static str] {
        match self {
            Self::Nvml => &[NVML],
            Self::Mps => &CUDA,
        }
    }

    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::Nvml => &[],
            Self::Mps => &PROGRAMS,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    #[error("cannot read the driver's folders under {0}")]
    Read(PathBuf, #[source] io::Error),
    #[error("the driver under {0} has no {1}")]
    Missing(PathBuf, &'static str),
    #[error("the driver under {0} is rejected")]
    Rejected(PathBuf, #[source] LibraryError),
    #[error("this image has no {C_LIBRARY} in any of {}", LINKER_DIRECTORIES.join(", "))]
    NoLinker,
    #[error("cannot create {0}")]
    Make(PathBuf, #[source] io::Error),
}

fn unread(path: &Path) -> impl FnOnce(io::Error) -> InjectError {
    let path = path.to_owned();
    move |source| InjectError::Read(path, source)
}

fn rejected(root: &Path) -> impl FnOnce(LibraryError) -> InjectError {
    let root = root.to_owned();
    move |source| InjectError::Rejected(root, source)
}

fn unmade(path: &Path) -> impl FnOnce(io::Error) -> InjectError {
    let path = path.to_owned();
    move |source| InjectError::Make(path, source)
}

/// Makes the driver under `root` available in the container whose root is `own`.
pub fn inject(root: &Path, own: &Path, needs: Needs) -> Result<(), InjectError> {
    let needed = needs.libraries();
    let folders = library_directories::of(&HostRoot::new(root), needed[0]).map_err(unread(root))?;
    let folder = LINKER_DIRECTORIES.iter().map(|folder| own.join(folder)).find(|at| at.join(C_LIBRARY).exists());
    let folder = folder.ok_or(InjectError::NoLinker)?;
    let driver = Driver::open(root)?;
    for name in needed {
        link(&driver.find(&folders, name)?, &folder.join(name))?;
    }
    for (name, library) in driver.libraries(&driver.find(&folders, needed[0])?)? {
        link(&library, &folder.join(name))?;
    }
    for name in needs.programs() {
        let target = driver.find(&PROGRAM_DIRECTORIES.map(PathBuf::from), name)?;
        link(&target, &own.join("usr/bin").join(name))?;
    }
    make_nodes(&root.join("dev"), &own.join("dev"))
}

struct Driver<'a> {
    root: &'a Path,
    trusted: LibraryRoot,
}

impl<'a> Driver<'a> {
    fn open(root: &'a Path) -> Result<Self, InjectError> {
        let trusted = LibraryRoot::open(root, None).map_err(rejected(root))?;
        Ok(Self { root, trusted })
    }

    /// Returns a file of the driver, if it exists. Links are resolved inside the driver's root; the kernel would resolve them in the
    /// container's.
    fn file(&self, place: &Path) -> Result<Option<PathBuf>, InjectError> {
        // A folder that others may write to does not matter as long as it holds nothing of the driver.
        if HostRoot::new(self.root).metadata(place).is_err() {
            return Ok(None);
        }
        let found = self.trusted.find(&self.root.join(place)).map_err(rejected(self.root))?;
        Ok(Some(found.path))
    }

    /// Finds a file of the driver in the first folder that has it.
    fn find(&self, folders: &[PathBuf], name: &'static str) -> Result<PathBuf, InjectError> {
        for folder in folders {
            if let Some(file) = self.file(&folder.join(name))? {
                return Ok(file);
            }
        }
        Err(InjectError::Missing(self.root.to_owned(), name))
    }

    /// Returns the driver's libraries beside a required one, but not those of other branches: name and file.
    fn libraries(&self, needed: &Path) -> Result<Vec<(OsString, PathBuf)>, InjectError> {
        let Some(folder) = needed.parent() else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for entry in fs::read_dir(folder).map_err(unread(folder))? {
            let name = entry.map_err(unread(folder))?.file_name();
            let is_one = |name: &str| LIBRARIES.iter().any(|prefix| name.starts_with(prefix)) && name.contains(".so.");
            if !name.to_str().is_some_and(is_one) {
                continue;
            }
            let place = folder.strip_prefix(self.root).unwrap_or(folder).join(&name);
            found.extend(self.file(&place)?.map(|file| (name, file)));
        }
        Ok(found)
    }
}

/// Creates a link to a file. A file that the image or a runtime provides under that name stays.
fn link(target: &Path, link: &Path) -> Result<(), InjectError> {
    if fs::symlink_metadata(link).is_ok_and(|found| !found.is_symlink()) {
        return Ok(());
    }
    // A restarted container may find its own links.
    match fs::remove_file(link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(unmade(link)(error)),
        _ => {}
    }
    symlink(target, link).map_err(unmade(link))
}

/// Creates the device nodes that one `/dev` has and another lacks, including those in folders.
fn make_nodes(from: &Path, to: &Path) -> Result<(), InjectError> {
    let entries = match fs::read_dir(from) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(unread(from))?,
    };
    for entry in entries {
        let entry = entry.map_err(unread(from))?;
        if is_of_driver(&entry.file_name()) {
            make_node(&entry.path(), &to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn is_of_driver(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(NODES))
}

fn make_node(from: &Path, to: &Path) -> Result<(), InjectError> {
    let node = fs::metadata(from).map_err(unread(from))?;
    if node.is_dir() {
        fs::create_dir_all(to).map_err(unmade(to))?;
        return make_nodes(from, to);
    }
    if !node.file_type().is_char_device() || to.exists() {
        return Ok(());
    }
    device_nodes::create(to, node.rdev(), node.permissions()).map_err(unmade(to))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use gpu_host::process::error_chain;

    use super::*;

    fn lay(root: &Path, files: &[&str]) {
        for file in files {
            let file = root.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "").unwrap();
        }
    }

    const PROGRAM_FILES: [&str; 3] =
        ["usr/bin/nvidia-smi", "usr/bin/nvidia-cuda-mps-control", "usr/bin/nvidia-cuda-mps-server"];

    /// An image, with a driver beside it.
    fn container(libc: &str) -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (root, own) = (folder.path().join("driver"), folder.path().join("own"));
        lay(&own, &[libc, "usr/bin/mps-control-daemon"]);
        (folder, root, own)
    }

    #[test]
    fn a_driver_is_linked_where_linker_and_programs_search() {
        let (_folder, root, own) = container("usr/lib64/libc.so.6");
        lay(&root, &["usr/lib/x86_64-linux-gnu/libcuda.so.580.1", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1"]);
        lay(
            &root,
            &["usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.1", "usr/lib/x86_64-linux-gnu/libc.so.6"],
        );
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        for name in ["libcuda.so", "libnvidia-ml.so", "libnvidia-ptxjitcompiler.so"] {
            symlink(format!("{name}.580.1"), libraries.join(format!("{name}.1"))).unwrap();
        }
        lay(&root, &PROGRAM_FILES[..2]);
        let error = inject(&root, &own, Needs::Mps).unwrap_err();
        assert!(error.to_string().ends_with("has no nvidia-cuda-mps-server"), "{error}");
        lay(&root, &PROGRAM_FILES);
        for _ in 0..2 {
            inject(&root, &own, Needs::Mps).unwrap();
        }
        let target = |path: &str| fs::read_link(own.join(path)).unwrap();
        assert_eq!(target("usr/lib64/libcuda.so.1"), libraries.join("libcuda.so.580.1"));
        assert_eq!(target("usr/lib64/libcuda.so.580.1"), libraries.join("libcuda.so.580.1"));
        assert_eq!(
            target("usr/lib64/libnvidia-ptxjitcompiler.so.1"),
            libraries.join("libnvidia-ptxjitcompiler.so.580.1")
        );
        assert_eq!(target("usr/bin/nvidia-smi"), root.join("usr/bin/nvidia-smi"));
        assert!(fs::symlink_metadata(own.join("usr/lib64/libc.so.6")).unwrap().is_file(), "the image's own C library");
    }

    #[test]
    fn debians_links_are_resolved_inside_the_drivers_root() {
        let (_folder, root, own) = container("usr/lib/x86_64-linux-gnu/libc.so.6");
        let current = "usr/lib/x86_64-linux-gnu/nvidia/current";
        let files = ["libcuda.so.535.261.03", "libnvidia-ml.so.535.261.03"].map(|name| format!("{current}/{name}"));
        lay(&root, &files.each_ref().map(String::as_str));
        lay(&root, &PROGRAM_FILES[..2]);
        lay(&root, &["usr/sbin/nvidia-cuda-mps-server"]);
        fs::create_dir_all(root.join("etc/alternatives")).unwrap();
        for (name, file) in CUDA.into_iter().zip(&files) {
            symlink(format!("/{file}"), root.join("etc/alternatives").join(name)).unwrap();
            symlink(format!("/etc/alternatives/{name}"), root.join("usr/lib/x86_64-linux-gnu").join(name)).unwrap();
        }
        inject(&root, &own, Needs::Mps).unwrap();
        for (name, file) in CUDA.into_iter().zip(&files) {
            assert_eq!(fs::read_link(own.join("usr/lib/x86_64-linux-gnu").join(name)).unwrap(), root.join(file));
        }
        let server = fs::read_link(own.join("usr/bin/nvidia-cuda-mps-server")).unwrap();
        assert_eq!(server, root.join("usr/sbin/nvidia-cuda-mps-server"));
    }

    #[test]
    fn the_library_of_an_appliance_is_found_and_needs_no_program() {
        let (_folder, root, own) = container("usr/lib/x86_64-linux-gnu/libc.so.6");
        lay(&root, &["opt/appliance/lib/libnvidia-ml.so.580.159.04"]);
        symlink("libnvidia-ml.so.580.159.04", root.join("opt/appliance/lib/libnvidia-ml.so.1")).unwrap();
        lay(&root, &["etc/ld.so.conf"]);
        fs::write(root.join("etc/ld.so.conf"), "/opt/appliance/lib\n").unwrap();
        inject(&root, &own, Needs::Nvml).unwrap();
        let library = fs::read_link(own.join("usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")).unwrap();
        assert_eq!(library, root.join("opt/appliance/lib/libnvidia-ml.so.580.159.04"));
        let error = inject(&root, &own, Needs::Mps).unwrap_err();
        assert!(error.to_string().ends_with("has no libcuda.so.1"), "{error}");
    }

    #[test]
    fn files_of_the_image_or_of_a_runtime_stay() {
        let (_folder, root, own) = container("lib64/libc.so.6");
        lay(&root, &["usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1"]);
        lay(&root, &PROGRAM_FILES);
        lay(&own, &["lib64/libcuda.so.1", "usr/bin/nvidia-smi"]);
        inject(&root, &own, Needs::Mps).unwrap();
        for path in ["lib64/libcuda.so.1", "usr/bin/nvidia-smi"] {
            assert!(fs::symlink_metadata(own.join(path)).unwrap().is_file(), "{path}");
        }
        assert!(own.join("lib64/libnvidia-ml.so.1").is_symlink());
    }

    #[test]
    fn files_that_another_user_could_replace_are_rejected() {
        for (writable, file) in [("usr/lib64", "libnvidia-ml.so.1"), ("usr/bin", "nvidia-smi")] {
            let (_folder, root, own) = container("lib64/libc.so.6");
            lay(&root, &["usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1"]);
            lay(&root, &PROGRAM_FILES);
            fs::set_permissions(root.join(writable), fs::Permissions::from_mode(0o777)).unwrap();
            let error = error_chain(&inject(&root, &own, Needs::Mps).unwrap_err());
            assert!(error.contains(&format!("users other than root may write to /{writable} (mode 777)")), "{error}");
            assert!(fs::symlink_metadata(own.join("lib64").join(file)).is_err(), "it is not linked");
            assert!(fs::symlink_metadata(own.join("usr/bin").join(file)).is_err(), "it is not linked");
        }
    }

    #[test]
    fn a_folder_without_the_driver_may_be_writable_for_others() {
        let (_folder, root, own) = container("lib64/libc.so.6");
        lay(&root, &["lib64/other.so", "usr/lib/libnvidia-ml.so.1"]);
        fs::set_permissions(root.join("lib64"), fs::Permissions::from_mode(0o777)).unwrap();
        inject(&root, &own, Needs::Nvml).unwrap();
        assert_eq!(fs::read_link(own.join("lib64/libnvidia-ml.so.1")).unwrap(), root.join("usr/lib/libnvidia-ml.so.1"));
    }

    #[test]
    fn an_image_without_a_c_library_is_an_error() {
        let (_folder, root, own) = container("opt/libc.so.6");
        lay(&root, &["usr/lib64/libcuda.so.1", "usr/lib64/libnvidia-ml.so.1"]);
        let error = inject(&root, &own, Needs::Mps).unwrap_err();
        assert!(error.to_string().starts_with("this image has no libc.so.6"), "{error}");
    }
}
