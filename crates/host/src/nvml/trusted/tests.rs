use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt, chown, lchown, symlink},
};

use nix::{sys::stat::Mode, unistd::mkfifo};

use super::*;

const FOLDER: &str = "opt/driver/lib";
const LIBRARY: &str = "opt/driver/lib/libnvidia-ml.so.580.173.02";
const USER: u32 = 1000;

/// A host on which only root may write to the library.
fn host() -> tempfile::TempDir {
    let host = tempfile::tempdir().unwrap();
    fs::create_dir_all(host.path().join(FOLDER)).unwrap();
    fs::write(host.path().join(LIBRARY), "library").unwrap();
    for path in ["opt", "opt/driver", FOLDER, LIBRARY] {
        set_mode(&host.path().join(path), 0o755);
    }
    host
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn find(host: &Path, library: &str) -> Result<PathBuf, String> {
    let found = LibraryRoot::open(host, None).and_then(|root| root.find(&host.join(library)));
    found.map(|found| found.path).map_err(|error| error.to_string())
}

fn refusal(host: &Path) -> String {
    find(host, LIBRARY).unwrap_err()
}

#[test]
fn a_library_that_only_root_may_write_to_is_found_through_links() {
    let host = host();
    symlink("/opt/driver", host.path().join("linked")).unwrap();
    symlink("libnvidia-ml.so.580.173.02", host.path().join(FOLDER).join("link.so")).unwrap();
    assert_eq!(find(host.path(), "linked/lib/link.so").unwrap(), host.path().join(LIBRARY));
    let missing = find(host.path(), "opt/none.so").unwrap_err();
    assert!(missing.starts_with("cannot load /opt/none.so: No such file"), "{missing}");
    let outside = LibraryRoot::open(host.path(), None).unwrap().find(Path::new("/lib/a.so")).unwrap_err();
    assert!(outside.to_string().contains("/lib/a.so is not below"), "{outside}");
    let outside = LibraryRoot::open(host.path(), Some(Path::new("/usr"))).unwrap_err();
    assert!(outside.to_string().contains("/usr is not below"), "{outside}");
}

#[test]
fn a_path_that_others_may_write_to_is_refused() {
    for (path, mode) in [
        ("", 0o777),
        ("opt", 0o775),
        ("opt/driver", 0o757),
        (FOLDER, 0o1777),
        (FOLDER, 0o1775),
        (LIBRARY, 0o666),
        (LIBRARY, 0o664),
    ] {
        let host = host();
        set_mode(&host.path().join(path), mode);
        let why = refusal(host.path());
        let expected = format!("users other than root may write to /{path} (mode {mode:o})");
        assert!(why.starts_with("cannot load /opt/driver/lib/") && why.contains(&expected), "{why}");
    }
}

#[test]
fn a_path_of_another_user_is_refused() {
    if !geteuid().is_root() {
        eprintln!("skipped: giving files to another user requires root privileges");
        return;
    }
    for path in ["", "opt", "opt/driver", FOLDER, LIBRARY] {
        let host = host();
        chown(host.path().join(path), Some(USER), None).unwrap();
        let why = refusal(host.path());
        assert!(why.contains(&format!("/{path} belongs to user 1000; it must belong to root")), "{why}");
    }
    // A link of another user leads to a library of root.
    let host = host();
    symlink("/opt/driver", host.path().join("linked")).unwrap();
    lchown(host.path().join("linked"), Some(USER), None).unwrap();
    let why = find(host.path(), "linked/lib/libnvidia-ml.so.580.173.02").unwrap_err();
    assert!(why.contains("/linked belongs to user 1000"), "{why}");
}

#[test]
fn a_link_that_leads_to_a_folder_of_others_is_refused() {
    let host = host();
    fs::create_dir_all(host.path().join("tmp/lib")).unwrap();
    fs::write(host.path().join("tmp/lib/libnvidia-ml.so.580.173.02"), "malicious").unwrap();
    set_mode(&host.path().join("tmp"), 0o1777);
    // It was a folder when the driver's root was chosen.
    fs::rename(host.path().join("opt/driver"), host.path().join("opt/before")).unwrap();
    symlink("/tmp", host.path().join("opt/driver")).unwrap();
    let why = refusal(host.path());
    assert!(why.contains("users other than root may write to /tmp (mode 1777)"), "{why}");
    let entered = LibraryRoot::open(host.path(), Some(&host.path().join("opt/driver"))).unwrap_err();
    assert!(entered.to_string().contains("users other than root may write to /tmp (mode 1777)"), "{entered}");
}

#[test]
fn what_is_not_a_file_is_refused_without_opening_it() {
    let host = host();
    let library = host.path().join(LIBRARY);
    fs::remove_file(&library).unwrap();
    mkfifo(&library, Mode::S_IRWXU).unwrap();
    assert!(refusal(host.path()).ends_with("it is a FIFO"), "{}", refusal(host.path()));
    fs::remove_file(&library).unwrap();
    fs::create_dir(&library).unwrap();
    set_mode(&library, 0o755);
    assert!(refusal(host.path()).ends_with("it is a directory"), "{}", refusal(host.path()));
}

#[test]
fn nixos_store_is_trusted_and_no_other_sticky_folder() {
    let host = host();
    fs::create_dir_all(host.path().join("nix/store")).unwrap();
    fs::rename(host.path().join("opt/driver"), host.path().join("nix/store/x-driver")).unwrap();
    let library = "nix/store/x-driver/lib/libnvidia-ml.so.580.173.02";
    for path in ["nix", "nix/store"] {
        set_mode(&host.path().join(path), 0o755);
    }
    set_mode(&host.path().join("nix/store"), 0o1775);
    find(host.path(), library).unwrap();
    for (path, mode) in [("nix/store", 0o1777), ("nix/store", 0o775), ("nix/store/x-driver", 0o1775)] {
        set_mode(&host.path().join("nix/store"), 0o1775);
        set_mode(&host.path().join(path), mode);
        let why = find(host.path(), library).unwrap_err();
        assert!(why.contains(&format!("may write to /{path} (mode {mode:o})")), "{why}");
    }
}
