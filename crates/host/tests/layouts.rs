//! Where hosts keep a driver's libraries: the layouts of packages, installers and appliances, as empty files and links
//! at the same paths. Debian's are those of its packages `libnvidia-ml1` 535.261.03 and `libnvidia-tesla-470-ml1`
//! 470.256.02 of bookworm and of the links that `nvidia-alternative` creates; the caches were written by ldconfig of
//! glibc 2.36 over the unpacked packages. The layouts of RHEL 7, Ubuntu, NixOS and WSL are unverified.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{fs, os::unix::fs::symlink, path::Path};

use gpu_host::{
    nvml::trusted::Target,
    observe::driver::{GKE_ROOT, HOST_ROOT, all_libraries, libraries},
    root::HostRoot,
};

const DEBIAN: &[u8] = include_bytes!("layouts/debian.ld.so.cache");
/// The same cache, with `/opt/appliance/lib` in the linker's configuration.
const APPLIANCE: &[u8] = include_bytes!("layouts/appliance.ld.so.cache");
/// The same cache with the older format in front of it, as ldconfig wrote both up to glibc 2.31.
const COMPAT: &[u8] = include_bytes!("layouts/compat.ld.so.cache");

const TRIPLET: &str = "usr/lib/x86_64-linux-gnu";

struct Layout {
    what: &'static str,
    files: &'static [&'static str],
    links: &'static [(&'static str, &'static str)],
    cache: &'static [u8],
    configuration: &'static [(&'static str, &'static str)],
    /// Paths of the libraries that are found under `/`.
    found: &'static [&'static str],
}

const NOTHING: Layout = Layout { what: "", files: &[], links: &[], cache: &[], configuration: &[], found: &[] };

const LAYOUTS: [Layout; 11] = [
    Layout {
        what: "RHEL 7's packages",
        files: &["usr/lib64/nvidia/libnvidia-ml.so.352.99"],
        found: &["/usr/lib64/nvidia/libnvidia-ml.so.352.99"],
        ..NOTHING
    },
    Layout {
        what: "Ubuntu's packages up to 18.04",
        files: &["usr/lib/nvidia-390/libnvidia-ml.so.390.157", "usr/lib/nvidia-390-extra/README"],
        found: &["/usr/lib/nvidia-390/libnvidia-ml.so.390.157"],
        ..NOTHING
    },
    Layout {
        what: "Debian's packages before ldconfig has run, with an older branch installed as well",
        files: &[
            "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.261.03",
            "usr/lib/x86_64-linux-gnu/nvidia/tesla-470/libnvidia-ml.so.470.256.02",
        ],
        found: &[
            "/usr/lib/x86_64-linux-gnu/nvidia/tesla-470/libnvidia-ml.so.470.256.02",
            "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.535.261.03",
        ],
        ..NOTHING
    },
    Layout {
        what: "a branch of Debian's that can only be found through the cache and its links",
        files: &["usr/lib/elsewhere/libnvidia-ml.so.535.261.03"],
        links: &[
            ("/etc/alternatives/nvml", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"),
            ("/usr/lib/elsewhere/libnvidia-ml.so.1", "etc/alternatives/nvml"),
            ("libnvidia-ml.so.535.261.03", "usr/lib/elsewhere/libnvidia-ml.so.1"),
        ],
        cache: DEBIAN,
        found: &["/usr/lib/elsewhere/libnvidia-ml.so.535.261.03"],
        ..NOTHING
    },
    Layout {
        what: "an appliance's folder in the linker's cache",
        files: &["opt/appliance/lib/libnvidia-ml.so.470.256.02"],
        links: &[("libnvidia-ml.so.470.256.02", "opt/appliance/lib/libnvidia-ml.so.1")],
        cache: APPLIANCE,
        found: &["/opt/appliance/lib/libnvidia-ml.so.470.256.02"],
        ..NOTHING
    },
    Layout {
        what: "the same folder in the cache of an older ldconfig",
        files: &["opt/appliance/lib/libnvidia-ml.so.470.256.02"],
        cache: COMPAT,
        found: &["/opt/appliance/lib/libnvidia-ml.so.470.256.02"],
        ..NOTHING
    },
    Layout {
        what: "a vendor's folder in the linker's configuration, without a cache",
        files: &["opt/vendor/lib/libnvidia-ml.so.470.256.02"],
        configuration: &[
            ("etc/ld.so.conf", "include ld.so.conf.d/*.conf\ninclude /etc/ld.so.conf\n"),
            ("etc/ld.so.conf.d/vendor.conf", "# the vendor's\n/opt/vendor/lib/ # here\n"),
            ("etc/ld.so.conf.d/other.txt", "/opt/other/lib\n"),
        ],
        found: &["/opt/vendor/lib/libnvidia-ml.so.470.256.02"],
        ..NOTHING
    },
    Layout {
        what: "NixOS",
        files: &["nix/store/x-nvidia-x11-580.95.05/lib/libnvidia-ml.so.580.95.05"],
        links: &[
            ("/nix/store/y-graphics-drivers", "run/opengl-driver"),
            (
                "/nix/store/x-nvidia-x11-580.95.05/lib/libnvidia-ml.so.580.95.05",
                "nix/store/y-graphics-drivers/lib/libnvidia-ml.so.580.95.05",
            ),
        ],
        found: &["/run/opengl-driver/lib/libnvidia-ml.so.580.95.05"],
        ..NOTHING
    },
    Layout {
        what: "WSL",
        files: &["usr/lib/wsl/lib/libnvidia-ml.so.581.29"],
        found: &["/usr/lib/wsl/lib/libnvidia-ml.so.581.29"],
        ..NOTHING
    },
    Layout {
        what: "a damaged cache",
        files: &["usr/lib64/libnvidia-ml.so.580.95.05"],
        cache: b"glibc-ld.so.cache1.1\xff\xff\xff\xff\xff\xff\xff\xff",
        found: &["/usr/lib64/libnvidia-ml.so.580.95.05"],
        ..NOTHING
    },
    Layout { what: "nothing", files: &["usr/lib/libc.so.6"], ..NOTHING },
];

fn write(root: &Path, path: &str, bytes: &[u8]) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

fn host(layout: &Layout) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for file in layout.files {
        write(root, file, b"");
    }
    for (target, link) in layout.links {
        fs::create_dir_all(root.join(link).parent().unwrap()).unwrap();
        symlink(target, root.join(link)).unwrap();
    }
    for (file, text) in layout.configuration {
        write(root, file, text.as_bytes());
    }
    if !layout.cache.is_empty() {
        write(root, "etc/ld.so.cache", layout.cache);
    }
    directory
}

#[test]
fn libraries_are_found_where_hosts_keep_them_and_can_be_loaded() {
    for layout in &LAYOUTS {
        let directory = host(layout);
        let host = HostRoot::new(directory.path());
        let found = libraries(&host, HOST_ROOT).unwrap();
        let paths: Vec<_> = found.iter().map(|library| library.path.to_str().unwrap()).collect();
        assert_eq!(paths, layout.found, "{}", layout.what);
        for library in &found {
            let target = Target::choose(&host, true, "boot", Some(&library.version), &found).unwrap();
            assert_eq!((target.chroot.as_deref(), &target.library), (Some(directory.path()), &library.path));
            let target = Target::choose(&host, false, "boot", Some(&library.version), &found).unwrap();
            assert!(target.chroot.is_none() && target.library.is_file(), "{}", layout.what);
        }
    }
}

#[test]
fn a_32_bit_library_is_ignored() {
    let directory = host(&NOTHING);
    let root = directory.path();
    write(root, "usr/lib/libnvidia-ml.so.470.256.02", b"\x7fELF\x01\x01");
    assert!(libraries(&HostRoot::new(root), HOST_ROOT).unwrap().is_empty());
    write(root, &format!("{TRIPLET}/libnvidia-ml.so.470.256.02"), b"\x7fELF\x02\x01");
    assert_eq!(libraries(&HostRoot::new(root), HOST_ROOT).unwrap().len(), 1);
}

#[test]
fn libraries_in_an_installers_folder_are_not_the_hosts() {
    let directory = host(&NOTHING);
    let root = directory.path();
    for folder in [GKE_ROOT, "/opt/own", "/run/nvidia/driver"] {
        write(root, &format!("{}/lib64/libnvidia-ml.so.535.309.01", &folder[1..]), b"");
    }
    let folders = format!("{GKE_ROOT}/lib64\n/opt/own/lib64\n/run/nvidia/driver/lib64\n");
    write(root, "etc/ld.so.conf", folders.as_bytes());
    let host = HostRoot::new(root);
    let roots =
        |own| -> Vec<String> { all_libraries(&host, own).unwrap().into_iter().map(|library| library.root).collect() };
    assert_eq!(roots(Some("/opt/own")), ["/opt/own", "/run/nvidia/driver", GKE_ROOT]);
    assert_eq!(roots(None), ["/run/nvidia/driver", HOST_ROOT, GKE_ROOT], "/opt/own was not requested");
}

#[test]
fn a_folder_that_contains_the_libraries_itself_is_a_root() {
    let directory = host(&NOTHING);
    write(directory.path(), "opt/own/libnvidia-ml.so.535.309.01", b"");
    let host = HostRoot::new(directory.path());
    let found = all_libraries(&host, Some("/opt/own")).unwrap();
    let target = Target::choose(&host, true, "boot", Some("535.309.01"), &found).unwrap();
    assert_eq!(target.library, Path::new("/opt/own/libnvidia-ml.so.535.309.01"));
}
